"""Settings of the config as texts that hold no secret."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from relay.admin.page.formats import duration
from relay.core.config_values import Duration, Secret, Size
from relay.core.units import size


@dataclass(frozen=True, slots=True)
class Setting:
    """One key; `is_default` if it has its default value."""

    key: str
    value: str
    is_default: bool


def settings_of(table: msgspec.Struct) -> Iterator[Setting]:
    """Yield the keys of a table; of a secret, only whether it is set."""
    for field in msgspec.structs.fields(table):
        value = getattr(table, field.name)
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        yield Setting(field.name, _text(value, is_secret=_is_secret(field)), value == default)


def _is_secret(field: msgspec.structs.FieldInfo) -> bool:
    return Secret in getattr(field.type, "__args__", (field.type,))


def _text(value: Any, *, is_secret: bool = False) -> str:
    if is_secret:
        return "not set" if value is None else "set"
    if value in (None, (), {}):
        return "none"
    match value:
        case Duration():
            return duration(value)
        case Size():
            return size(value)
        case Mapping():
            return ", ".join(f"{name}: {_text(each)}" for name, each in value.items())
        case tuple() | list():
            return ", ".join(map(_text, value))
    return str(value)
