"""Compares a new config with the running one, and finds changes that need a restart."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from relay.config import Config
from relay.config.sinks import files
from relay.core.config_values import Secret
from relay.core.errors import Fault
from relay.core.proxies import DIRECT, OutboundSettings
from relay.core.sink import SinkSettings

_FIXED = {"server": ("listen", "admin_listen"), "store": (), "log": ()}
"""Settings that only a restart can change: these keys of a table, or all if none is listed.

Of the store's, its engine can change some.
"""

_STAYS = "cannot change while the relay runs: restore the old value, or restart the relay"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Names of changed tables, in the order of the config."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between two configs, by name."""

    sinks: Difference
    """A changed sink is replaced, with new connections and a new state."""
    rerouted: tuple[str, ...]
    """Sinks of which only the routes change."""
    sources: Difference
    settings: tuple[str, ...]
    """Changed keys of the other tables."""

    def paths(self) -> dict[str, list[str]]:
        """Return all differences as config paths, such as `sink.crm` or `server.max_body`."""
        sinks, sources = self.sinks, self.sources
        changed = _paths(source=sources.changed, sink=(*sinks.changed, *self.rerouted))
        return {
            "added": _paths(source=sources.added, sink=sinks.added),
            "changed": [*changed, *self.settings],
            "removed": _paths(source=sources.removed, sink=sinks.removed),
        }


def _paths(**tables: Iterable[str]) -> list[str]:
    return [f"{table}.{name}" for table, names in tables.items() for name in names]


def changes(old: Config, new: Config) -> Changes:
    """Return the differences between two configs."""
    sinks = _difference(_connections(old), _connections(new))
    edited = _difference(_named(map(_own, old.sinks)), _named(map(_own, new.sinks))).changed
    return Changes(
        sinks=sinks,
        rerouted=tuple(name for name in edited if name not in sinks.changed),
        sources=_difference(_named(old.sources), _named(new.sources)),
        settings=tuple(
            f"{table}.{key}"
            for table in ("server", "admin", "outbound", "store")
            for key in _differing(getattr(old, table), getattr(new, table))
        ),
    )


def fixed(old: Config, new: Config) -> tuple[Fault, ...]:
    """Return a fault for every changed key that needs a restart."""
    changeable = {f"store.{key}" for key in old.store.changeable}
    return tuple(
        Fault(f"{table}.{key}", _STAYS)
        for table, keys in _FIXED.items()
        for key in _differing(getattr(old, table), getattr(new, table))
        if key in keys or (not keys and f"{table}.{key}" not in changeable)
    )


def _connections(config: Config) -> dict[str, Any]:
    """Return, by sink, what needs a new connection when it changes: all but the routes."""
    return {
        sink.name: (
            replace(
                _own(sink), events=(), sources=None, when=None, ordered=None, reconstructed=False
            ),
            [config.references.get(path) for path in files(asdict(sink))],
        )
        for sink in config.sinks
    }


def _own(sink: SinkSettings) -> SinkSettings:
    """Return a sink's settings without `[outbound]`, where it goes directly in any case."""
    is_direct = getattr(sink, "proxy_url", None) == Secret(DIRECT)
    return replace(sink, outbound=OutboundSettings()) if is_direct else sink


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference:
    return Difference(
        added=tuple(name for name in after if name not in before),
        changed=tuple(name for name in after if name in before and before[name] != after[name]),
        removed=tuple(name for name in before if name not in after),
    )


def _differing(old: Any, new: Any) -> list[str]:
    before, after = asdict(old), asdict(new)
    return [key for key in after if key not in before or before[key] != after[key]]


def _named(tables: Iterable[Any]) -> dict[str, Any]:
    return {table.name: table for table in tables}


def digest(config: Config) -> str:
    """Return a short digest of what members of a cluster should have in common.

    That is all but listeners, tokens and logging. Secrets count by their labels only.
    """
    shared = (config.sources, config.sinks, config.store)
    return hashlib.sha256(repr(shared).encode()).hexdigest()[:12]
