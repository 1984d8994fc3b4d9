"""Settings of the config as texts that hold no secret."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args
from urllib.parse import urlsplit

import msgspec

from relay.core.config_values import Duration, Rate, Secret, Size
from relay.core.proxies import DIRECT, OutboundSettings
from relay.core.sink import SinkSettings
from relay.core.units import duration, size

_WITH_HOST = frozenset({"url", "servers", "token_url", "proxy_url"})
"""Secret keys that hold a URL: its host is shown, not its user, path or query."""

_OF_ROUTE = frozenset({"name", "type", "events", "sources", "when", "ordered"})
"""Keys of a sink that its view shows elsewhere."""

_HOST = re.compile(r"[a-z0-9._-]{1,253}|\[?[0-9a-f:.]{2,45}\]?")


class Setting(msgspec.Struct, frozen=True):
    """One key; `is_default` if it has its default value."""

    key: str
    value: str
    is_default: bool


def settings_of_sink(sink: SinkSettings) -> list[Setting]:
    """List the settings beside the route's, given ones first; no text holds a secret."""
    listed = [each for each in settings_of(sink) if each.key not in _OF_ROUTE]
    return sorted(listed, key=lambda each: each.is_default)


def settings_of(table: msgspec.Struct, prefix: str = "") -> Iterator[Setting]:
    """Yield the keys of a table and of those within it; no text holds a secret.

    `[outbound]`, which tables hold beside their keys, is listed as a table of its own.
    """
    for field in msgspec.structs.fields(table):
        if field.type is OutboundSettings:
            continue
        key, value = f"{prefix}{field.name}", getattr(table, field.name)
        if isinstance(value, msgspec.Struct):
            yield from settings_of(value, f"{key}.")
        else:
            text = "not set" if value is None and _is_secret(field) else _text(field.name, value)
            yield Setting(key, text, value == _default(field))


def _is_secret(field: msgspec.structs.FieldInfo) -> bool:
    return Secret in get_args(field.type)


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
    """Say that a secret is set; of a URL, also where it leads, or that there is no proxy."""
    if key not in _WITH_HOST:
        return "set"
    if value.reveal() == DIRECT:
        return DIRECT
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
