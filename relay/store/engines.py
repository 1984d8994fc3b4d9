"""The store's engines: the only module outside their folders that names one."""

from collections.abc import Callable

from relay.core.clock import Clock
from relay.core.totals import Total
from relay.store import Store, StoreSettings
from relay.store.sqlite import driver, store

VERSION = driver.VERSION
"""Of SQLite, for `relay_build_info`."""


async def open_store(
    settings: StoreSettings,
    *,
    clock: Clock,
    committed: Callable[[float], None] = lambda _: None,
    counted: Callable[[Total], None] = lambda _: None,
) -> Store:
    """Open the configured store, locked and migrated.

    `committed` is passed the seconds of each transaction, and `counted` the total that a new event
    is part of, once that is on disk.

    Raises StoreLocked, StoreExposed, StoreTooNew, StoreFull, and StoreBroken for one that cannot be
    opened.
    """
    return await store.open_store(settings, clock=clock, committed=committed, counted=counted)
