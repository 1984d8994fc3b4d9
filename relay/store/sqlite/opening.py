"""Opening of a SQLite store: locked, migrated, and with what it keeps in memory read."""

import errno
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

from relay.core.clock import Clock
from relay.core.delivery import Status
from relay.core.errors import StoreBroken, StoreError, StoreFull, StoreRefused
from relay.core.totals import Total
from relay.store.keyed_digests import digests as digests_of
from relay.store.sqlite import accept as acceptance
from relay.store.sqlite import (
    conditions,
    disk,
    generation,
    id_periods,
    operator_writes,
    ordering,
    preflight,
    queries,
    reconstruct,
    schema,
    secure_delete,
)
from relay.store.sqlite import settle as settling
from relay.store.sqlite.audience import recognize
from relay.store.sqlite.driver import Connection, open_reader, open_writer, sqlite3
from relay.store.sqlite.errors import classify, may_lack_room
from relay.store.sqlite.files import Files
from relay.store.sqlite.filter_builder import FilterBuilder
from relay.store.sqlite.group_commit import GroupCommit, transaction
from relay.store.sqlite.known_ids import KnownIds
from relay.store.sqlite.outstanding import Outstanding
from relay.store.sqlite.secure_delete import Wiper
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.shared import Shared
from relay.store.sqlite.store import SqliteStore
from relay.store.sqlite.totals import totals as read_totals

_OF_THE_PATH = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.EOPNOTSUPP),
    }
)
"""Errors that only another path or other rights end; the disk itself works."""


async def open_store(
    settings: SqliteSettings,
    *,
    clock: Clock,
    committed: Callable[[float], None] = lambda _: None,
    counted: Callable[[Total], None] = lambda _: None,
) -> SqliteStore:
    """Lock, open and migrate the store.

    `committed` is passed the seconds of each transaction, and `counted` the total that a new event
    is part of, once that is on disk.

    Raises StoreLocked, StoreExposed, StoreTooNew, StoreFull, and StoreBroken for a file that cannot
    be opened.
    """
    path = Path(settings.path)
    async with AsyncExitStack() as opened:
        try:
            disk.make_folder(path)
            held = opened.enter_context(disk.lock(path))
            disk.make_file(path)
            disk.require_single(path)
            if (foreign := preflight.foreign_log(path)) is not None:
                raise StoreRefused(f"the store {path} cannot be opened: {foreign}")
            connection = await open_writer(path)
            opened.push_async_callback(connection.close)
            unclean = await connection.run(lambda db: _begin(db, path, now_ms=clock.now_ms()))
            readers: list[Connection] = []
            for _ in range(4):
                readers.append(await open_reader(path))
                opened.push_async_callback(readers[-1].close)
            leaser, reader, searcher, pager = readers
            tallies = await leaser.run(queries.tallies)
            totals = await leaser.run(read_totals)
            turns = await connection.run(ordering.ordering_keys)
            digests, tokens = await connection.run(digests_of)
            for each in (reader, searcher, pager):
                await each.run(partial(recognize, digests=digests))
                await each.run(conditions.define)
            last = await leaser.run(acceptance.last_number)
            ids = await connection.run(lambda db: KnownIds.of_store(db, id_periods.of(last + 1)))
            damage = await _recall(ids, connection)
            outstanding = await leaser.run(Outstanding.of_store)
            unwiped = await reader.run(secure_delete.is_unfinished)
            files = Files(path)
            opened.callback(files.close)
            # Last, and undone where the opening is cut off: nothing is to be checked then.
            opened.push_async_callback(_mark, connection, clean=not unclean)
            await connection.run(lambda db: queries.remember(db, "clean", 0))
        except (OSError, sqlite3.Error) as error:
            raise _opening_error(path, error) from None

        def recorded(seconds: float) -> None:
            ids.recent.commit()
            committed(seconds)

        writer = GroupCommit(
            connection,
            clock=clock,
            committed=recorded,
            files=files,
            rolled_back=ids.recent.roll_back,
        )
        real = disk.real(path)
        shared = Shared(
            leaser=leaser,
            reader=reader,
            searcher=searcher,
            pager=pager,
            writer=writer,
            wiper=Wiper(real, writer, reader, clock=clock),
            room=disk.Room(real, settings.min_free, clock),
            turns=turns,
            digests=digests,
            tokens=tokens,
            outstanding=outstanding,
            tallies=defaultdict(lambda: dict.fromkeys(Status, 0), tallies),
        )
        store = SqliteStore(
            settings,
            shared,
            clock=clock,
            held=held,
            files=files,
            accept=acceptance.Acceptance(turns, ids, last),
            filters=FilterBuilder(ids, writer, reader, shared.room),
            totals=totals,
            counted=counted,
            unclean=unclean,
        )
        if damage is not None:
            writer.mark_broken(damage)
        if unwiped:
            shared.wiper.resume()
        store.filters.start()
        opened.pop_all()
    return store


async def _mark(connection: Connection, *, clean: bool) -> None:
    with suppress(sqlite3.Error):
        await connection.run(lambda db: queries.remember(db, "clean", clean))


async def _recall(ids: KnownIds, connection: Connection) -> StoreBroken | None:
    """Return why the newest ids cannot be read; the store then opens, but accepts nothing."""
    try:
        await connection.read(ids.recall)
    except StoreBroken as error:
        return error
    return None


def _opening_error(path: Path, error: OSError | sqlite3.Error) -> StoreError:
    """Tell a full disk, and a file that cannot be used, from a store that needs a repair."""
    shortage = None
    if isinstance(error, OSError):
        shortage = disk.lack_of_room(error)
    elif isinstance(classify(error), StoreFull):
        shortage = "the disk is full"
    elif may_lack_room(error):
        shortage = disk.shortage(path)
    if shortage is not None:
        return StoreFull(f"the store {path} cannot be opened: {shortage}")
    if refusal := preflight.check(path):
        return StoreRefused(f"the store {path} cannot be opened: {refusal}")
    if isinstance(error, OSError) and error.errno in _OF_THE_PATH:
        return StoreRefused(
            f"the store {path} cannot be opened: {error.strerror}; change store.path"
        )
    return StoreBroken(f"the store {path} cannot be opened: {error}")


def _begin(db: sqlite3.Connection, path: Path, *, now_ms: int) -> bool:
    """Migrate the schema; True if the last relay did not close the store."""
    schema.migrate(db, now_ms=now_ms, free_bytes=partial(disk.free_bytes, disk.real(path)))
    generation.advance(db)
    db.executescript(acceptance.TRIGGER + settling.TRIGGER + ordering.TRIGGER)
    with transaction(db):
        operator_writes.withdraw_all(db)
        db.execute(reconstruct.CUT_OFF)
    return queries.recall(db, "clean") == 0
