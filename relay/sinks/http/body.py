"""The bodies that a config describes: a JSON document, or a form.

The structure is the operator's; only texts are templates, which are filled in before the whole is
serialized, so that no event can change it.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import urlencode

import msgspec
import orjson

from relay.core.errors import InvalidTemplate
from relay.core.foreign_json import whole
from relay.core.setting_errors import Faults
from relay.outbound.template import Rendering, Template, Write, is_template
from relay.outbound.template_places import in_json

_JSON = "json"
"""A table with this key alone is the text of a JSON value."""

_INTEGERS = range(-(1 << 63), 1 << 64)
"""Those that JSON's readers, and ours, keep as they are."""

_REFERENCE = re.compile(r"env:[A-Za-z_]\w*|file:/\S+|\$\{[A-Za-z_]\w*\}", re.ASCII)
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")


class _Filled(msgspec.Struct, frozen=True):
    """A text of the body, with its path in the config and the function that reads its output."""

    path: str
    template: Template
    read: Callable[[str], Any]

    def fill(self, rendering: Rendering) -> Any:
        try:
            return self.read(self.template.fill(rendering))
        except InvalidTemplate as error:
            raise InvalidTemplate(f"{self.path}: {error}") from None


class JsonBody:
    """A JSON document."""

    content_type: ClassVar = "application/json"

    def __init__(self, source: Mapping[str, Any] | str) -> None:
        """`source` is a table, or the text of a document; raises as `Faults` does, with keys."""
        if isinstance(source, str):
            source = {_JSON: source}
        faults = Faults()
        self._root = _compiled(source, "body", faults)
        faults.raise_all()

    def fill(self, rendering: Rendering) -> bytes:
        """Write the document for an event; raises InvalidTemplate, with the key."""
        document = _fill(self._root, rendering)
        try:
            return orjson.dumps(document)
        except orjson.JSONEncodeError:  # its context may hold values
            pass
        raise InvalidTemplate("body: is nested too deeply")


class FormBody:
    """A form, as browsers send one; a list is one field several times."""

    content_type: ClassVar = "application/x-www-form-urlencoded"

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Raises as `Faults` does, with keys."""
        if not fields:
            raise ValueError("form: is empty: expected at least one field")
        faults = Faults()
        self._fields = [
            (name, _compiled(value, _below("form", name), faults))
            for name, each in fields.items()
            for value in _field(each, _below("form", name), faults)
        ]
        faults.raise_all()

    def fill(self, rendering: Rendering) -> bytes:
        """Write the form for an event; raises InvalidTemplate, with the key."""
        pairs = [(name, _fill(value, rendering)) for name, value in self._fields]
        return urlencode(pairs).encode()


def unresolved(value: object, path: str) -> Iterator[str]:
    """Yield a warning for each text of a body that looks like a reference."""
    match value:
        case str() if _REFERENCE.fullmatch(value):
            yield (
                f"{path}: looks like a reference, but is sent as it is, for bodies take none: put "
                "a secret into headers, or the value itself here"
            )
        case dict():
            for key, each in value.items():
                yield from unresolved(each, _below(path, key))
        case list():
            for at, each in enumerate(value):
                yield from unresolved(each, f"{path}[{at}]")


def _field(value: object, path: str, faults: Faults) -> list[Any]:
    """Return the values of one field of a form."""
    values = value if isinstance(value, list) else [value]
    with faults.collect():
        if any(isinstance(each, list | dict) for each in values):
            raise ValueError(f"{path}: expected a text, a number, true, false, or a list of them")
        return [str(each).lower() if isinstance(each, bool) else each for each in values]
    return []


def _compiled(value: object, path: str, faults: Faults) -> Any:
    match value:
        case str():
            return _text(value, path, faults)
        case {"json": str(text), **others} if not others:
            return _text(text, path, faults, read=_document, write=in_json)
        case dict():
            return {key: _compiled(each, _below(path, key), faults) for key, each in value.items()}
        case list():
            return [_compiled(each, f"{path}[{at}]", faults) for at, each in enumerate(value)]
    with faults.collect():
        is_number = isinstance(value, float) and math.isfinite(value)
        if not (is_number or (isinstance(value, int) and value in _INTEGERS)):
            raise ValueError(f"{path}: expected texts, numbers, true, false, lists and tables")
    return value


def _text(
    text: str,
    path: str,
    faults: Faults,
    *,
    read: Callable[[str], Any] = whole,
    write: Write = iter,
) -> Any:
    with faults.collect():
        try:
            if is_template(text):
                return _Filled(path, Template(text, write=write), read)
            return read(text)
        except InvalidTemplate as error:
            raise InvalidTemplate(f"{path}: {error}") from None
    return None


def _document(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:  # it holds the text
        fault = f"{error.msg} at line {error.lineno}, column {error.colno}"
    raise InvalidTemplate(f"what is written is no JSON: {fault}")


def _fill(value: object, rendering: Rendering) -> Any:
    match value:
        case _Filled():
            return value.fill(rendering)
        case dict():
            return {key: _fill(each, rendering) for key, each in value.items()}
        case list():
            return [_fill(each, rendering) for each in value]
    return value


def _below(path: str, key: str) -> str:
    part = key if _PLAIN_KEY.fullmatch(key) else msgspec.json.encode(key[:60]).decode()
    return f"{path}.{part}"
