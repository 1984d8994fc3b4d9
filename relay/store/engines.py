"""The store's engines: the only module outside their folders that names one."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from relay.core.clock import Clock
from relay.core.errors import Fault
from relay.core.setting_errors import missing_client
from relay.core.totals import Total
from relay.store import Preflight, Reached, Store, StoreSettings
from relay.store.copy_result import CopyResult
from relay.store.integrity import Inspection
from relay.store.postgres.settings import PostgresSettings
from relay.store.sqlite.settings import SqliteSettings

DEFAULT = "sqlite"
SETTINGS: Mapping[str, type[StoreSettings]] = {
    "postgres": PostgresSettings,
    "sqlite": SqliteSettings,
}
"""By `type`."""


class Engine(Protocol):
    """The module `engine` in an engine's folder; `settings` are always its own."""

    def faults(self, settings: Any) -> tuple[Fault, ...]:
        """Return faults of values that are valid by themselves, without a look at the store."""
        ...

    def location(self, settings: Any) -> str:
        """Return where the store is, for messages; it holds no secret."""
        ...

    def preflight(self, settings: Any) -> Preflight:
        """Return what an opening would meet here, without a connection and without a change."""
        ...

    async def reach(self, settings: Any) -> Reached | None:
        """Connect as `open_store` would, without a change, and return what was found.

        None if there is nothing to connect to. Raises what `open_store` raises.
        """
        ...

    async def open_store(
        self,
        settings: Any,
        *,
        clock: Clock,
        committed: Callable[[float], None],
        counted: Callable[[Total], None],
    ) -> Store:
        """Fulfil `engines.open_store`."""
        ...

    def is_held(self, settings: Any) -> bool:
        """Whether only the relay that runs may read the store."""
        ...

    async def inspect(self, settings: Any) -> Inspection:
        """Read the whole store without a relay, and return its faults rather than raise them."""
        ...

    async def restore(
        self, settings: Any, copy: Path, *, now_ms: int
    ) -> tuple[Inspection, Path | None]:
        """Put a copy in the place of the store, and return where the old one is, if there was one.

        A copy with faults changes nothing. Raises StoreLocked while a relay has the store,
        StoreLacks on an engine whose own programs do it, and StoreError.
        """
        ...


def load(type_: str) -> Engine:
    """Import an engine; raises ValueError if its client library is not installed."""
    try:
        module = import_module(f"relay.store.{type_}.engine")
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "relay":
            raise  # a bug in the relay, which no client library would fix
        raise ValueError(missing_client(f'type = "{type_}"', type_)) from None
    return cast("Engine", module)


def of(settings: StoreSettings) -> Engine:
    """Return the engine of settings that were loaded, for which it was imported already."""
    return load(settings.type)


async def open_store(
    settings: StoreSettings,
    *,
    clock: Clock,
    committed: Callable[[float], None] = lambda _: None,
    counted: Callable[[Total], None] = lambda _: None,
) -> Store:
    """Open the configured store, locked or shared, and migrated.

    `clock` is the machine's, from which the store's own one may differ.
    `committed` is passed the seconds of each transaction, and `counted` the total that a new event
    is part of, once that is on disk.

    Raises StoreLocked, StoreExposed, StoreTooNew, StoreRefused, StoreFull, StoreUnavailable for one
    that may be opened later, and StoreBroken for one that cannot be.
    """
    engine = of(settings)
    return await engine.open_store(settings, clock=clock, committed=committed, counted=counted)


def fault_of_source(settings: StoreSettings) -> Fault | None:
    """Return why no copy can be made of this store."""
    return _other_type(settings, SqliteSettings)


def fault_of_target(settings: StoreSettings) -> Fault | None:
    """Return why no copy can be made into this store."""
    return _other_type(settings, PostgresSettings)


def _other_type(settings: StoreSettings, kind: type[StoreSettings]) -> Fault | None:
    if isinstance(settings, kind):
        return None
    expected = next(type_ for type_, each in SETTINGS.items() if each is kind)
    return Fault("store.type", f'expected "{expected}" here, found "{settings.type}"')


def copy(
    source: StoreSettings,
    target: StoreSettings,
    *,
    now_ms: int,
    wrote: Callable[[str, int], None],
    compares: Callable[[str], None],
) -> Sequence[CopyResult]:
    """Copy a stopped relay's store as `copying.transfer` does, for settings without a fault."""
    module = import_module("relay.store.copying.transfer")
    copied: Sequence[CopyResult] = module.copy(
        source, target, now_ms=now_ms, wrote=wrote, compares=compares
    )
    return copied


async def inspect_copy(file: Path) -> Inspection:
    """Inspect a backup, which is always an SQLite database, and leave nothing beside it."""
    engine = load("sqlite")
    inspection = await engine.inspect(SqliteSettings(path=str(file)))
    # SQLite leaves these files behind after the check.
    for companion in ("-wal", "-shm"):
        file.with_name(file.name + companion).unlink(missing_ok=True)
    return inspection
