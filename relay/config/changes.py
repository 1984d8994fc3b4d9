"""Compares a new config with the running one, and finds changes that need a restart."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict, replace

from relay.config import Config
from relay.config.sinks import files
from relay.core.errors import Fault
from relay.core.sink import SinkSettings

_FIXED = {"server": ("listen", "admin_listen"), "store": (), "log": ()}
"""Settings that only a restart can change: these keys of a table, or all if none is listed."""

_STAYS = "cannot change while the relay runs: restore the old value, or restart the relay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Names of changed tables, in the order of the config."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
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
        return {
            "added": [*_paths("source", self.sources.added), *_paths("sink", self.sinks.added)],
            "changed": [
                *_paths("source", self.sources.changed),
                *_paths("sink", (*self.sinks.changed, *self.rerouted)),
                *self.settings,
            ],
            "removed": [
                *_paths("source", self.sources.removed),
                *_paths("sink", self.sinks.removed),
            ],
        }


def _paths(table: str, names: Iterable[str]) -> list[str]:
    return [f"{table}.{name}" for name in names]


def changes(old: Config, new: Config) -> Changes:
    """Return the differences between two configs."""
    before, after = _named(old.sinks), _named(new.sinks)
    common = [name for name in after if name in before]
    replaced = tuple(
        name
        for name in common
        if _connection_settings(old, name) != _connection_settings(new, name)
    )
    return Changes(
        sinks=_difference(before, after, changed=replaced),
        rerouted=tuple(
            name for name in common if name not in replaced and before[name] != after[name]
        ),
        sources=_sources(old, new),
        settings=tuple(
            f"{table}.{key}"
            for table in ("server", "admin")
            for key in _differing(getattr(old, table), getattr(new, table))
        ),
    )


def fixed(old: Config, new: Config) -> tuple[Fault, ...]:
    """Return a fault for every changed key that needs a restart."""
    return tuple(
        Fault(f"{table}.{key}", _STAYS)
        for table, keys in _FIXED.items()
        for key in _differing(getattr(old, table), getattr(new, table))
        if not keys or key in keys
    )


def _connection_settings(config: Config, name: str) -> tuple[SinkSettings, list[bytes | None]]:
    """Return the settings that need a new sink when they change: all but its routes."""
    settings = _named(config.sinks)[name]
    marks = [config.references.get(path) for path in files(asdict(settings))]
    return replace(settings, events=(), sources=None, when=None, ordered=None), marks


def _sources(old: Config, new: Config) -> Difference:
    before, after = _named(old.sources), _named(new.sources)
    changed = tuple(name for name in after if name in before and before[name] != after[name])
    return _difference(before, after, changed=changed)


def _difference(
    before: Mapping[str, Any], after: Mapping[str, Any], *, changed: tuple[str, ...]
) -> Difference:
    return Difference(
        added=tuple(name for name in after if name not in before),
        changed=changed,
        removed=tuple(name for name in before if name not in after),
    )


def _differing(old: Any, new: Any) -> list[str]:
    before, after = asdict(old), asdict(new)
    return [key for key in after if key not in before or before[key] != after[key]]


def _named(tables: Iterable[Any]) -> dict[str, Any]:
    return {table.name: table for table in tables}
