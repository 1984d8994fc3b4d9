"""What a new config changes of a running relay, and what it may not change (pure)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict, replace

from relay.config import Config
from relay.config.sinks import files
from relay.core.errors import Fault
from relay.core.sink import SinkSettings

_FIXED = {"server": ("listen", "admin_listen"), "store": (), "log": ()}
"""What is made once, at the start: these keys of a table, or all of them where none is named."""

_STAYS = "cannot change while the relay runs: put the old value back, or restart the relay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Names, in the order of the config."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What becomes different, by names of sinks and sources."""

    sinks: Difference
    """A changed one is replaced: other connections, another state."""
    rerouted: tuple[str, ...]
    """Sinks that get other events and are the same in all else."""
    sources: Difference
    settings: tuple[str, ...]
    """Keys of the other tables."""

    def paths(self) -> dict[str, list[str]]:
        """The same as paths in the config: `sink.crm`, `server.max_body`."""
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
    """Say what becomes different where `new` takes the place of `old`."""
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
    """Every key of `new` that only another process can have."""
    return tuple(
        Fault(f"{table}.{key}", _STAYS)
        for table, keys in _FIXED.items()
        for key in _differing(getattr(old, table), getattr(new, table))
        if not keys or key in keys
    )


def _connection_settings(config: Config, name: str) -> tuple[SinkSettings, list[bytes | None]]:
    """All that a sink is made of; what it is sent is not among it."""
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
