"""How a TOML table becomes a settings struct: field by field, so that every fault is found."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from relay.config.file_references import References
from relay.core import config_values
from relay.core.config_values import Secret
from relay.core.errors import Fault

FAULTY: Final = object()
"""Stands where a value could not be read, so that its neighbours are still checked."""

QUOTED_MAX_CHARS = 60

Rules = Mapping[str, Callable[[Any], str | None]]
"""By `server.listen`, `source[].path` ...: what is wrong with a value that has the right type."""

_KIND_NAMES: dict[type, str] = {list: "a list", dict: "a table"}
_TYPE_NAMES: dict[Any, str] = {
    str: "text in quotes",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list in [brackets]",
    list: "a list in [brackets]",
    dict: "a table",
    Secret: 'a value in quotes, "env:NAME" or "file:/path"',
}


class Place(NamedTuple):
    """A key as it is shown (`sink[1] (crm).url`), and as rules know it (`sink[].url`)."""

    text: str
    rule: str

    def key(self, name: str) -> "Place":
        part = name if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) else quoted(name)
        dot = "." if self.text else ""
        return Place(f"{self.text}{dot}{part}", f"{self.rule}{dot}{name}")

    def item(self, index: int, label: str = "") -> "Place":
        return Place(f"{self.text}[{index}]{label}", f"{self.rule}[]")


@dataclass
class Findings:
    """What is wrong and what is only odd in one document, gathered on the way through it."""

    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)

    def fault(self, place: Place, message: str) -> None:
        self.faults.append(Fault(place.text, message))

    def warn(self, place: Place, message: str) -> None:
        self.warnings.append(Fault(place.text, message))


@dataclass(frozen=True)
class Table:
    """One table as far as it could be read: good values, defaults, and FAULTY for the rest.

    Never printed and never kept: a `Config` is made of the structs.
    """

    place: Place
    kind: type[msgspec.Struct]
    values: dict[str, Any]
    whole: bool

    def get(self, name: str) -> Any:
        """The value, or None where it is faulty."""
        value = self.values.get(name)
        return None if value is FAULTY else value

    def at(self, name: str) -> Place:
        return self.place.key(name)

    def faulty(self) -> set[str]:
        """Known keys whose values are unreadable, in whole or in part."""
        return {name for name, value in self.values.items() if _is_faulty(value)}

    def build(self) -> Any:
        """Make the struct of a table without faulty values.

        Raises ValueError where the struct itself objects.
        """
        return self.kind(**{name: build(value) for name, value in self.values.items()})


class Reader:
    """Turns raw TOML values into typed ones and notes each fault where it is."""

    def __init__(
        self,
        rules: Rules,
        environ: Mapping[str, str],
        findings: Findings,
        references: References | None = None,
    ) -> None:
        """`references` is told of every file that is read."""
        self.references = references or References()
        self._rules = rules
        self._decode = partial(config_values.decode, environ=environ, read=self.references.read)
        self._findings = findings

    def table(self, raw: object, kind: type[msgspec.Struct], place: Place) -> Table:
        """Read one table; whatever is missing, unknown or wrong in it becomes a fault."""
        before = len(self._findings.faults)
        if not isinstance(raw, dict):
            self._findings.fault(place, f"expected a table, found {describe(raw)}")
            return Table(place, kind, {}, whole=False)
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        values = {field.name: self._field(raw, field, place) for field in fields.values()}
        self.unknown(raw, fields, place)
        return Table(place, kind, values, whole=len(self._findings.faults) == before)

    def unknown(self, raw: Iterable[str], known: Iterable[str], place: Place) -> None:
        """Note every key that is not known here, with the nearest that is."""
        names = sorted(known)
        for key in raw:
            if key in names:
                continue
            near = get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(names)}"
            self._findings.fault(place.key(key), f"is not a known key; {hint}")

    def value(self, raw: object, kind: Any, place: Place) -> Any:
        """Read one value of the given type; FAULTY where it cannot be, after noting why."""
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

    def _short(self, raw: object, kind: type[msgspec.Struct], name: str, place: Place) -> Table:
        """Read a table that is written as the value of its one field that counts."""
        values = {field.name: field.default for field in msgspec.structs.fields(kind)}
        value = self.value(raw, kind.__annotations__[name], place)
        return Table(place, kind, {**values, name: value}, whole=value is not FAULTY)

    def _field(self, raw: dict[str, Any], field: msgspec.structs.FieldInfo, place: Place) -> Any:
        if field.encode_name in raw:
            return self.value(raw[field.encode_name], field.type, place.key(field.encode_name))
        if field.required:
            expected = _expected(bare(field.type))
            self._findings.fault(place.key(field.encode_name), f"is missing: expected {expected}")
            return FAULTY
        if field.default_factory is not msgspec.NODEFAULT:
            return field.default_factory()
        return field.default

    def _leaf(self, raw: object, kind: Any, place: Place) -> Any:
        try:
            value = msgspec.convert(raw, kind, dec_hook=self._decode)
        except msgspec.ValidationError as error:
            self._findings.fault(place, _message(raw, kind, error))
            return FAULTY
        return self._checked(value, place)

    def _checked(self, value: Any, place: Place) -> Any:
        complaint = self._rules.get(place.rule, lambda _: None)(value)
        if complaint is None:
            return value
        self._findings.fault(place, complaint)
        return FAULTY


def describe(raw: object) -> str:
    """Name a raw TOML value so that an operator knows it again, in a bounded length."""
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, int) and abs(raw) >= 1 << 63:
        return "a very large number"  # Python refuses to write out thousands of digits
    if isinstance(raw, int | float):
        return str(raw)
    return quoted(raw) if isinstance(raw, str) else _KIND_NAMES.get(type(raw), "a date or time")


def quoted(text: str) -> str:
    """The text in quotes, cut, with nothing in it that a terminal would obey."""
    cut = text if len(text) <= QUOTED_MAX_CHARS else text[:QUOTED_MAX_CHARS] + "..."
    return json.dumps(cut, ensure_ascii=not cut.isprintable())


def build(value: Any) -> Any:
    """Replace every table in a value by its struct."""
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
    """The type without its notes and without None, which TOML cannot say."""
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
    return _TYPE_NAMES.get(get_origin(kind) or kind, "another kind of value")


def _message(raw: object, kind: Any, error: msgspec.ValidationError) -> str:
    text = str(error).partition(" - at `$")[0]
    if _holds_secret(kind):
        # Whatever stands here may be the secret itself, in the wrong place or form.
        return text if isinstance(raw, str) and kind is Secret else f"expected {_expected(kind)}"
    if text.startswith("expected "):
        return f"{text}, found {describe(raw)}"
    if (get_origin(kind) or kind) in _TYPE_NAMES or get_origin(kind) is Literal:
        return f"expected {_expected(kind)}, found {describe(raw)}"
    return f"{text[:1].lower()}{text[1:]}, found {describe(raw)}"


def _holds_secret(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return any(_holds_secret(field.type) for field in msgspec.structs.fields(kind))
    return kind is Secret or any(_holds_secret(argument) for argument in get_args(kind))
