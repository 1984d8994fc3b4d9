"""Sink types: one folder each, found by name; no list of them exists elsewhere."""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import cast

from relay.core.sink import SinkModule


def names() -> tuple[str, ...]:
    """Every sink type, without importing any."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def load(type_: str) -> SinkModule:
    """Import a sink type.

    Raises ValueError if there is no such type, or if its client library is not installed.
    """
    name = f"{__name__}.{type_}"
    if not type_.isidentifier() or find_spec(name) is None:
        raise ValueError(f"no sink type is called `{type_}`; there are: {', '.join(names())}")
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "relay":
            raise  # a bug in the relay, which no client library would fix
        needs = f"sink type `{type_}` needs its client: pip install 'relay[{type_}]'"
        raise ValueError(needs) from None
    return cast("SinkModule", module)
