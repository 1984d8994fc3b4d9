"""Ids in memory agree with the stored events, also after a failure, and while they are indexed."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from relay.store.selection import Selection
from relay.store.sqlite import filter_builder, id_indexing, id_periods
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.id_indexing import STEP_ROWS
from relay.store.sqlite.integrity import inspect
from relay.store.sqlite.recent_ids import RecentIds
from relay.store.sqlite.store import SqliteStore
from tests.conftest import ManualClock
from tests.store.conformance import accept, event
from tests.store.places import SqlitePlace
from tests.store.sqlite.test_ids_model import crashed
from tests.store.sqlite.test_known_ids import end_of, filters_made, go_to, opened
from tests.stub_server import until

T = TypeVar("T")

NAMES = [f"e{number}" for number in range(10)]

_REFUSE = """
CREATE TEMP TRIGGER refuse BEFORE INSERT ON main.{table} WHEN NEW.id = '{id}'
BEGIN SELECT raise(ABORT, 'as if the disk failed'); END
"""
_ALLOW = "DROP TRIGGER refuse"


async def full_period(place: SqlitePlace, clock: ManualClock) -> None:
    """Store ten events in the first period, which is full for good only with another event."""
    async with opened(place, clock) as store:
        await accept(store, *map(event, NAMES), verdicts=[])
    go_to(place, id_periods.first(1))


async def execute(store: SqliteStore, sql: str) -> None:
    await store._writer.run_exclusive(lambda db: db.executescript(sql))


def test_an_id_has_a_number_of_the_last_commit_only() -> None:
    random, recent = Random(1), RecentIds()
    committed: list[tuple[str, int]] = []
    seq = 0
    for _ in range(200):
        added = []
        for _ in range(random.randrange(8)):
            seq += random.choice((1, 1, 1, 5000))
            added.append((f"e{random.randrange(20)}", seq))
            recent.add("main", *added[-1])
        if random.random() < 0.5:
            recent.commit()
            committed += added
        else:
            recent.roll_back()
    for name in {name for name, _ in committed} | {"other"}:
        known = [number for each, number in committed if each == name]
        assert sorted(recent.candidates("main", name)) == known
        assert recent.candidates("other", name) == []


def test_two_ids_of_one_hash_are_both_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.store.sqlite.recent_ids.hash", lambda _: 7, raising=False)
    recent = RecentIds()
    for seq, name in enumerate("abc"):
        recent.add("main", name, seq)
    assert recent.candidates("main", "b") == [0, 1, 2]


async def test_an_event_that_was_removed_in_a_failed_transaction_is_still_known(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    async with opened(sqlite_place, clock) as store:
        assert await accept(store, event("a"), verdicts=[]) == ["accepted"]

        def remove_and_accept(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM events WHERE id = 'a'")
            assert arrive(db) == "accepted"
            db.execute("SELECT * FROM nowhere")

        def arrive(db: sqlite3.Connection) -> str:
            total = store._totals.of(event("a"))
            ((outcome, _),) = store._accept(db, [(event("a"), [], total)])
            return outcome

        with pytest.raises(Exception, match="not written"):
            await store._writer.transact(remove_and_accept)
        assert await accept(store, event("a"), verdicts=[]) == ["duplicate"]
    assert (await inspect(sqlite_place.path)).faults == ()


async def test_refused_events_leave_nothing_in_memory(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    async with opened(sqlite_place, clock) as store:
        await execute(store, _REFUSE.format(table="events", id="a"))
        for _ in range(3):
            with pytest.raises(Exception, match="not written"):
                await accept(store, event("a"), verdicts=[])
        assert store.filters._ids.recent.candidates("main", "a") == []
        await execute(store, _ALLOW)
        again = await accept(store, event("a"), event("a"), verdicts=[])
    assert again == ["accepted", "duplicate"]


async def test_an_old_id_that_comes_again_and_again_takes_no_memory(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    await full_period(sqlite_place, clock)
    async with opened(sqlite_place, clock) as store:
        await accept(store, event("new"), verdicts=[])
        await filters_made(store)
        for _ in range(20):
            assert await accept(store, event("e1"), verdicts=[]) == ["duplicate"]
        assert len(store.filters._ids.recent.candidates("main", "e1")) <= 1


async def test_a_period_whose_indexing_was_cut_off_is_known_and_is_indexed_later(
    sqlite_place: SqlitePlace, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_indexing, "STEP_ROWS", 2)
    await full_period(sqlite_place, clock)
    async with opened(sqlite_place, clock) as store:
        await execute(store, _REFUSE.format(table="ids", id="e7"))
        await accept(store, event("new"), verdicts=[])
        await until(lambda: len(indexed(sqlite_place)) == 6, what="the first three steps")
        # A row of the unfinished run goes with its event, and is not found twice.
        await execute(store, "DELETE FROM events WHERE id = 'e2'")
        found = await store.events.page(Selection(id_prefix="e"), [], limit=20)
        assert [each.id for each in found] == [name for name in reversed(NAMES) if name != "e2"]
        (only,) = await store.events.page(Selection(id="e1"), [], limit=20)
        assert only.seq == 2
        assert await store.events.named("e1", source=None, limit=9) == [only]
        assert await store.events.sources() == ["main"]
        assert (await store.search.count(Selection(), [], budget_s=5)).events == len(NAMES)
        of_source = await store.search.count(Selection(source="main"), [], budget_s=5)
        assert of_source.events == len(NAMES)
        successor = await crashed(store, sqlite_place, tmp_path / "crashed")
    for place in (successor, sqlite_place):
        async with opened(place, clock) as store:
            again = await accept(store, *map(event, [*NAMES, "new"]), verdicts=[])
            await filters_made(store)
            assert await accept(store, event("e2"), event("e7"), verdicts=[]) == ["duplicate"] * 2
        assert again == ["duplicate"] * 2 + ["accepted"] + ["duplicate"] * 8
        assert indexed(place) == sorted(set(NAMES) - {"e2"})
        assert (await inspect(place.path)).faults == ()


async def test_events_removed_or_erased_during_the_indexing_are_not_indexed(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    await full_period(sqlite_place, clock)
    async with opened(sqlite_place, clock) as store:
        await store.filters.close()
        await accept(store, event("new"), verdicts=[])
        await store.filters.close()

        class Reader:
            """Changes events after their numbers have been read."""

            async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
                read = await store._shared.reader.read(query)
                await execute(
                    store,
                    "DELETE FROM events WHERE id = 'e3';"
                    "UPDATE events SET id = 'erased-1' WHERE id = 'e4';",
                )
                return read

        await id_indexing.write(0, store._writer, Reader())  # type: ignore[arg-type]
    assert indexed(sqlite_place) == sorted({*NAMES, "erased-1"} - {"e3", "e4"})
    assert (await inspect(sqlite_place.path)).faults == ()


async def test_an_erased_id_of_the_newest_events_is_known(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    async with opened(sqlite_place, clock) as store:
        await accept(store, event("a"), verdicts=[])
        await execute(store, "UPDATE events SET id = 'erased-1' WHERE id = 'a'")
        outcomes = await accept(store, event("erased-1"), event("a"), verdicts=[])
    assert outcomes == ["conflict", "accepted"]


async def test_a_period_is_indexed_in_steps(
    sqlite_place: SqlitePlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_builder, "STEP_ROWS", 100)
    names = [f"e{number}" for number in range(2 * STEP_ROWS + 10)]
    async with opened(sqlite_place, clock):
        pass
    go_to(sqlite_place, end_of(0) - len(names) + 3)
    async with opened(sqlite_place, clock) as store:
        assert set(await accept(store, *map(event, names), verdicts=[])) == {"accepted"}
        await filters_made(store)
        assert set(store.filters._ids.recent.periods) == {1}
        assert set(await accept(store, *map(event, names), verdicts=[])) == {"duplicate"}
        assert await store.events.named("e7", source="main", limit=1)
    assert len(indexed(sqlite_place)) == len(names) - 2
    assert (await inspect(sqlite_place.path)).faults == ()


def indexed(place: SqlitePlace) -> list[str]:
    return sorted(name for (name,) in place.rows("SELECT id FROM relay.ids"))
