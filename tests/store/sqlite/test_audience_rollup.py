"""The audience by day in SQLite is made in several transactions, and not during an erasure."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from relay.store.audience import rollup
from relay.store.audience.writes import AudienceWrites
from relay.store.sqlite.audience_tables import SqliteAudienceTables
from relay.store.sqlite.store import SqliteStore
from relay.store.stepwise_erasure import ErasureRun
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept
from tests.store.erasing import erase
from tests.store.places import SqlitePlace
from tests.store.test_audience import ANN, BOB, BY_VIDEO, fill, opened, people_of, watched
from tests.store.test_audience_days import both, every_view, rolled_to

pytestmark = pytest.mark.usefixtures(every_view.__name__)


async def counted(batch: rollup.Batch, tables: AudienceWrites) -> rollup.Counted:
    async def read(part: Callable[[AudienceWrites], rollup.Part]) -> rollup.Part:
        return part(tables)

    return await batch.count(read)


def _fails(*_: object) -> None:
    raise AssertionError


async def test_a_batch_is_added_once_and_not_after_a_new_beginning(
    store: SqliteStore, sqlite_place: SqlitePlace
) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    await store.audience.count()
    with closing(sqlite3.connect(sqlite_place.path, isolation_level=None)) as db:
        tables = SqliteAudienceTables(db)
        first = rollup.next_batch(tables)
        assert first is not None
        tables.number(first.new_people)
        for _ in range(2):
            rollup.add(tables, await counted(first, tables))
        await accept(store, watched("c"))
        await store.audience.count()
        second = rollup.next_batch(tables)
        assert second is not None
        rollup.reset(tables)
        rollup.add(tables, await counted(second, tables))
    assert sqlite_place.rows("SELECT count(*) FROM relay.audience_days") == [(0,)]
    await fill(store)
    assert sqlite_place.rows("SELECT sum(events) FROM relay.audience_days") == [(3,)]


async def test_views_stay_out_of_the_days_during_an_erasure(
    store: SqliteStore, sqlite_place: SqlitePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await accept(store, watched("a"))
    await fill(store)
    seen: list[tuple[bool, int]] = []

    async def returns(*_: Any, **__: Any) -> Any:
        await accept(store, watched("b"))
        seen.append((await store.audience.fill(), rolled_to(sqlite_place)))
        return await carry_on(*_, **__)

    carry_on = ErasureRun.carry_on
    monkeypatch.setattr(ErasureRun, "carry_on", returns)
    await erase(store, ANN, now_ms=NOW_MS)
    assert seen == [(False, 1)]
    await fill(store)
    answer, expected = await both(store, BY_VIDEO)
    assert answer == expected


async def test_an_erasure_that_is_repeated_after_a_crash_is_complete(
    sqlite_place: SqlitePlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(sqlite_place, clock) as store:
        await accept(store, watched("a"), watched("b"), watched("c", BOB))
        await fill(store)
        with monkeypatch.context() as patch:
            patch.setattr("relay.store.erasures.end", _fails)
            with pytest.raises(Exception, match="not written"):
                await erase(store, ANN, now_ms=NOW_MS)
        assert sqlite_place.rows("SELECT count(*) FROM relay.viewers") == [(2,)]
    async with opened(sqlite_place, clock) as store:
        await erase(store, ANN, now_ms=NOW_MS)
        assert sqlite_place.rows("SELECT count(*) FROM relay.viewers") == [(1,)]
        assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}
