"""A sink's settings without secrets, and its route in words."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from relay.admin.page.formats import duration
from relay.core.config_values import Duration, Rate, Secret, Size
from relay.core.sink import SinkSettings
from relay.core.units import size

_OF_ROUTE = frozenset({"name", "type", "events", "sources", "when", "ordered"})
"""Keys that the view shows elsewhere."""

_WITH_HOST = frozenset({"url", "servers"})
"""Secret keys that hold a URL: its host is shown, not its user, path or query."""

_HOST = re.compile(r"[a-z0-9._-]{1,253}|\[?[0-9a-f:.]{2,45}\]?")


@dataclass(frozen=True, slots=True)
class Setting:
    """One key; `is_default` if it has its default value."""

    key: str
    value: str
    is_default: bool


def settings_of(sink: SinkSettings) -> list[Setting]:
    """List the keys beside the route's, given ones first; no text holds a secret."""
    found = [each for each in _settings(sink) if each.key not in _OF_ROUTE]
    return sorted(found, key=lambda each: each.is_default)


def _settings(table: msgspec.Struct, prefix: str = "") -> Iterator[Setting]:
    for field in msgspec.structs.fields(table):
        key, value = f"{prefix}{field.name}", getattr(table, field.name)
        if isinstance(value, msgspec.Struct):
            yield from _settings(value, f"{key}.")
        else:
            yield Setting(key, _text(field.name, value), value == _default(field))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _text(key: str, value: object) -> str:
    if value in (None, (), {}):
        return "none"
    match value:
        case Secret():
            return _secret(key, value)
        case bool():
            return "true" if value else "false"
        case Duration():
            return duration(value)
        case Size():
            return size(value)
        case Rate():
            return _rate(value)
        case Mapping():
            return ", ".join(f"{name}: {_text(name, each)}" for name, each in value.items())
        case tuple() | list():
            return ", ".join(_text("", each) for each in value)
        case float():
            return f"{value:g}"
    return str(value)


def _secret(key: str, value: Secret) -> str:
    """Say that a secret is set; of a URL, also where it leads."""
    if key not in _WITH_HOST:
        return "set"
    try:
        parts = urlsplit(value.reveal())
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "set"
    if _HOST.fullmatch(host) is None:
        return "set"
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}/…"


def _rate(rate: float) -> str:
    for seconds, unit in ((1, "s"), (60, "min")):
        if rate * seconds >= 1:
            return f"{rate * seconds:g} per {unit}"
    return f"{rate * 3600:g} per h"
