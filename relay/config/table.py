"""Converts TOML tables to settings structs, field by field, so that all faults are found."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, reduce
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from relay.config import text_checks
from relay.config.document import References
from relay.core import config_values
from relay.core.config_values import Secret, SecretTemplate
from relay.core.errors import ConfigError, Fault
from relay.core.setting_errors import suggestion
from relay.outbound.template import is_template

FAULTY: Final = object()
"""Marks an unreadable value, so that the other values are still checked."""

QUOTED_MAX_CHARS = 60

Rules = Mapping[str, Callable[[Any], str | None]]
"""Checks by key (`server.listen`, `source[].path`): return the fault of a value, or None."""

_KIND_NAMES: dict[type, str] = {list: "a list", dict: "a table"}
_REFERABLE = 'a value in quotes, "env:NAME" or "file:/path"'
_TYPE_NAMES: dict[Any, str] = {
    str: "text in quotes",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list in [brackets]",
    list: "a list in [brackets]",
    dict: "a table",
    Secret: _REFERABLE,
    SecretTemplate: _REFERABLE,
}


class KeyPath(NamedTuple):
    """A key as shown (`sink[1] (crm).url`) and as named in rules (`sink[].url`)."""

    text: str
    rule: str

    def key(self, name: str) -> "KeyPath":
        part = name if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) else quoted(name)
        dot = "." if self.text else ""
        return KeyPath(f"{self.text}{dot}{part}", f"{self.rule}{dot}{name}")

    def item(self, index: int, label: str = "") -> "KeyPath":
        return KeyPath(f"{self.text}[{index}]{label}", f"{self.rule}[]")


class Findings(msgspec.Struct):
    """Faults, mistakes and warnings of one document."""

    faults: list[Fault] = msgspec.field(default_factory=list)
    mistakes: list[Fault] = msgspec.field(default_factory=list)
    """Certain, but a relay has run with them: a check fails, and a start warns for one release."""
    warnings: list[Fault] = msgspec.field(default_factory=list)
    hints: list[Fault] = msgspec.field(default_factory=list)
    """Those about a text as such, which may explain a fault of its key."""

    def fault(self, place: KeyPath, message: str) -> None:
        self.faults.append(Fault(place.text, message))

    def mistake(self, place: KeyPath, message: str) -> None:
        self.mistakes.append(Fault(place.text, message))

    def warn(self, place: KeyPath, message: str) -> None:
        self.warnings.append(Fault(place.text, message))

    def raise_faults(self, file: Path) -> None:
        """Raise ConfigError if there are faults: with them, other mistakes, and hints at causes."""
        if self.faults:
            at_fault = {fault.path for fault in self.faults}
            mistakes = [mistake for mistake in self.mistakes if mistake.path not in at_fault]
            hints = [hint for hint in self.hints if hint.path in at_fault]
            raise ConfigError(str(file), (*self.faults, *mistakes, *hints))


class Table(msgspec.Struct, frozen=True):
    """The values of one table: valid ones, defaults, and FAULTY for unreadable ones."""

    place: KeyPath
    kind: type[msgspec.Struct]
    values: dict[str, Any]
    whole: bool

    def get(self, name: str) -> Any:
        """Return a value; None if it is faulty."""
        value = self.values.get(name)
        return None if value is FAULTY else value

    def at(self, name: str) -> KeyPath:
        return self.place.key(name)

    def items(self, name: str) -> Iterator[tuple[KeyPath, Any]]:
        """Yield the readable items of a list, with their places."""
        for index, item in enumerate(self.get(name) or ()):
            if item is not FAULTY:
                yield self.at(name).item(index), item

    def faulty(self) -> set[str]:
        """Return the known keys whose values are unreadable, in whole or in part."""
        return {name for name, value in self.values.items() if _is_faulty(value)}

    def build(self) -> Any:
        """Create the struct of a table without faulty values."""
        return self.kind(**{name: build(value) for name, value in self.values.items()})


class TableReader:
    """Converts raw TOML values to typed ones and notes each fault with its place."""

    def __init__(
        self,
        rules: Rules,
        environ: Mapping[str, str],
        findings: Findings,
        references: References | None = None,
    ) -> None:
        """`references` records every file that is read."""
        self.references = references or References()
        self._rules = rules
        self._environ = environ
        self._decode = partial(config_values.decode, environ=environ, read=self.references.read)
        self._findings = findings
        self._shared: dict[object, Table] = {}

    def share(self, table: Table) -> None:
        """Put this table into each one read from now on that has a field of its kind.

        Such a field is no key: the document says it once.
        """
        self._shared[table.kind] = table

    def table(self, raw: object, kind: type[msgspec.Struct], place: KeyPath) -> Table:
        """Read one table; missing, unknown and invalid keys become faults."""
        before = len(self._findings.faults)
        if not isinstance(raw, dict):
            self._findings.fault(place, f"expected a table, found {describe(raw)}")
            return Table(place, kind, {}, whole=False)
        fields = msgspec.structs.fields(kind)
        shared = {
            each.name: self._shared[each.type] for each in fields if each.type in self._shared
        }
        keys = {field.encode_name: field for field in fields if field.name not in shared}
        values = {field.name: self._field(raw, field, place) for field in keys.values()} | shared
        self.unknown(raw, keys, place)
        return Table(place, kind, values, whole=len(self._findings.faults) == before)

    def unknown(self, raw: Iterable[str], known: Iterable[str], place: KeyPath) -> None:
        """Note every unknown key, with the most similar known one."""
        names = sorted(known)
        for key in raw:
            if key in names:
                continue
            hint = suggestion(key, names) or f"; known here: {', '.join(names)}"
            self._findings.fault(place.key(key), f"is not a known key{hint}")

    def value(self, raw: object, kind: Any, place: KeyPath) -> Any:
        """Read a value of the given type; note a fault and return FAULTY if that fails."""
        kind = bare(kind)
        origin, arguments = get_origin(kind), get_args(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            short = getattr(kind, "SHORT", None)
            if short is not None and not isinstance(raw, dict):
                return self._short(raw, kind, short, place)
            return self.table(raw, kind, place)
        if isinstance(raw, list) and (origin is list or arguments[1:] == (...,)):
            items = [self.value(item, arguments[0], place.item(i)) for i, item in enumerate(raw)]
            return self._checked((origin or tuple)(items), place)
        if isinstance(raw, dict) and origin is dict:
            entries = {key: self.value(raw[key], arguments[1], place.key(key)) for key in raw}
            return self._checked(entries, place)
        return self._leaf(raw, kind, place)

    def _short(self, raw: object, kind: type[msgspec.Struct], name: str, place: KeyPath) -> Table:
        """Read a table that is written as the value of its main field."""
        values = {field.name: field.default for field in msgspec.structs.fields(kind)}
        value = self.value(raw, kind.__annotations__[name], place)
        return Table(place, kind, {**values, name: value}, whole=value is not FAULTY)

    def _field(self, raw: dict[str, Any], field: msgspec.structs.FieldInfo, place: KeyPath) -> Any:
        if field.encode_name in raw:
            return self.value(raw[field.encode_name], field.type, place.key(field.encode_name))
        if field.required:
            expected = _expected(bare(field.type))
            self._findings.fault(place.key(field.encode_name), f"is missing: expected {expected}")
            return FAULTY
        if field.default_factory is not msgspec.NODEFAULT:
            return field.default_factory()
        return field.default

    def _leaf(self, raw: object, kind: Any, place: KeyPath) -> Any:
        try:
            value = msgspec.convert(raw, kind, dec_hook=self._decode)
        except msgspec.ValidationError as error:
            self._findings.fault(place, _message(raw, kind, error))
            return FAULTY
        if isinstance(raw, str):
            self._examine(raw, value, place)
        return self._checked(value, place)

    def _examine(self, raw: str, value: object, place: KeyPath) -> None:
        found: Iterable[text_checks.TextFinding] = ()
        if isinstance(value, Secret):
            may_fill = isinstance(value, SecretTemplate) and is_template(value.reveal())
            check = text_checks.of_template if may_fill else text_checks.of_secret
            found = check(raw, value.reveal(), self._environ)
        elif type(value) is str:
            found = text_checks.of_text(raw, self._environ)
        for message, is_certain in found:
            note = self._findings.mistake if is_certain else self._findings.warn
            note(place, message)
            self._findings.hints.append(Fault(place.text, message))

    def _checked(self, value: Any, place: KeyPath) -> Any:
        complaint = self._rules.get(place.rule, lambda _: None)(value)
        if complaint is None:
            return value
        self._findings.fault(place, complaint)
        return FAULTY


def describe(raw: object) -> str:
    """Show a raw TOML value to the operator, in a bounded length."""
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, int) and abs(raw) >= 1 << 63:
        return "a very large number"  # `str` refuses thousands of digits
    if isinstance(raw, int | float):
        return str(raw)
    return quoted(raw) if isinstance(raw, str) else _KIND_NAMES.get(type(raw), "a date or time")


def quoted(text: str) -> str:
    """Quote a text, shortened, with control characters escaped."""
    cut = text if len(text) <= QUOTED_MAX_CHARS else text[:QUOTED_MAX_CHARS] + "..."
    return json.dumps(cut, ensure_ascii=not cut.isprintable())


def build(value: Any) -> Any:
    """Replace the tables in a value by their structs."""
    match value:
        case Table():
            return value.build()
        case tuple():
            return tuple(map(build, value))
    return value


def _is_faulty(value: Any) -> bool:
    match value:
        case Table():
            return not value.whole
        case dict():
            return any(map(_is_faulty, value.values()))
        case list() | tuple():
            return any(map(_is_faulty, value))
    return value is FAULTY


def bare(kind: Any) -> Any:
    """Return a type without None, which TOML cannot express."""
    if get_origin(kind) is Annotated:
        return kind
    if get_origin(kind) in (Union, UnionType):
        kinds = [argument for argument in get_args(kind) if argument is not NoneType]
        return bare(kinds[0]) if len(kinds) == 1 else reduce(or_, kinds)
    return kind


def _expected(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _expected(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return " or ".join(json.dumps(choice) for choice in get_args(kind))
    if get_origin(kind) is UnionType:
        return " or ".join(map(_expected, get_args(kind)))
    return _TYPE_NAMES.get(get_origin(kind) or kind, "another kind of value")


def _message(raw: object, kind: Any, error: msgspec.ValidationError) -> str:
    text = str(error).partition(" - at `$")[0]
    if _holds_secret(kind):
        # Never show the value: it may be the secret in a wrong form.
        is_text = isinstance(raw, str) and isinstance(kind, type) and issubclass(kind, Secret)
        return text if is_text else f"expected {_expected(kind)}"
    if text.startswith("expected "):
        return f"{text}, found {describe(raw)}"
    if (get_origin(kind) or kind) in (*_TYPE_NAMES, Literal, UnionType):
        return f"expected {_expected(kind)}, found {describe(raw)}"
    return f"{text[:1].lower()}{text[1:]}, found {describe(raw)}"


def _holds_secret(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return any(_holds_secret(field.type) for field in msgspec.structs.fields(kind))
    if isinstance(kind, type) and issubclass(kind, Secret):
        return True
    return any(_holds_secret(argument) for argument in get_args(kind))
