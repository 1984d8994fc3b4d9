"""Sink types: one folder each, found by name; no list of them exists elsewhere."""

from importlib import import_module
from pkgutil import iter_modules
from typing import cast

from relay.core.setting_errors import missing_client, suggestion
from relay.core.sink import SinkModule


def names() -> tuple[str, ...]:
    """Every sink type, without importing any."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def load(type_: str) -> SinkModule:
    """Import a sink type.

    Raises ValueError if there is no such type, or if its client library is not installed.
    """
    known = names()
    if type_ not in known:
        near = suggestion(type_, known)
        there = f"{near} There" if near else "; there"
        raise ValueError(f"no sink type is called `{type_}`{there} are: {', '.join(known)}")
    try:
        module = import_module(f"{__name__}.{type_}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "relay":
            raise  # a bug in the relay, which no client library would fix
        raise ValueError(missing_client(f"sink type `{type_}`", type_)) from None
    return cast("SinkModule", module)
