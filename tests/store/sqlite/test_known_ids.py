"""Ids are unique in all periods, with and without filters."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec.structs import replace

from relay.core.config_values import Duration
from relay.store.selection import Selection
from relay.store.sqlite import id_filter, id_periods
from relay.store.sqlite.filter_builder import FilterBuilder
from relay.store.sqlite.integrity import inspect
from relay.store.sqlite.store import SqliteStore
from tests.conftest import ManualClock
from tests.store.conformance import accept, event
from tests.store.erasing import erase
from tests.store.places import SqlitePlace
from tests.store.test_reconstructions import ANN, give, reconstructed, watched
from tests.stub_server import until

DAY_MS = 86_400_000
KEPT_DAYS = 90
BLOCK = 1 << id_filter.BLOCK_BITS


def opened(place: SqlitePlace, clock: ManualClock) -> AbstractAsyncContextManager[SqliteStore]:
    days = Duration.parse(f"{KEPT_DAYS}d")
    return place.open(clock, payload_retention=days, dedupe_retention=days)


def go_to(place: SqlitePlace, seq: int) -> None:
    """Let the next event of a closed store have this number."""
    place.rows(
        "INSERT INTO relay.state VALUES ('audience', %s) "
        "ON CONFLICT DO UPDATE SET value = max(value, excluded.value)",
        seq - 1,
    )


def end_of(period: int) -> int:
    return id_periods.first(period + 1) - 1


async def filters_made(store: SqliteStore) -> None:
    await until(lambda: not store.filters._ids.bare, what="the filters of the full periods")


async def through(
    place: SqlitePlace, clock: ManualClock, *ids_by_period: Iterable[str], with_filters: bool = True
) -> None:
    """Accept ids, each group in a period of its own."""
    for period, ids in enumerate(ids_by_period):
        async with opened(place, clock) as store:
            assert set(await accept(store, *map(event, ids), verdicts=[])) <= {"accepted"}
        go_to(place, id_periods.first(period + 1))
    async with opened(place, clock) as store:
        # The last period is full for good with an event in the next one.
        await accept(store, event("last"), verdicts=[])
        if with_filters:
            await filters_made(store)


@pytest.fixture(params=[True, False], ids=["with filters", "without filters"])
async def store(
    sqlite_place: SqlitePlace, clock: ManualClock, request: pytest.FixtureRequest
) -> AsyncIterator[SqliteStore]:
    """A store with `a` in its first period, `b` in the second, `c` in the third."""
    await through(sqlite_place, clock, "a", "b", "c", with_filters=request.param)
    async with opened(sqlite_place, clock) as one:
        if not request.param:
            await one.filters.close()
        yield one


async def test_an_id_of_an_older_period_is_a_duplicate_or_a_conflict(store: SqliteStore) -> None:
    again = [event("a"), event("b", seed=2), event("new"), event("c"), event("a", source="other")]
    outcomes = await accept(store, *again, verdicts=[])
    assert outcomes == ["duplicate", "conflict", "accepted", "duplicate", "accepted"]


async def test_the_same_id_twice_in_one_transaction_is_accepted_once(store: SqliteStore) -> None:
    twice = [event("new"), event("new"), event("new", seed=1)]
    assert await accept(store, *twice, verdicts=[]) == ["accepted", "duplicate", "conflict"]


async def test_a_transaction_across_the_end_of_a_period_accepts_an_id_once(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    async with opened(sqlite_place, clock):
        pass
    go_to(sqlite_place, end_of(0) - 1)
    async with opened(sqlite_place, clock) as store:
        same = [event(name) for name in "abcdabcd"]
        outcomes = await accept(store, *same, verdicts=[])
    assert outcomes == ["accepted"] * 4 + ["duplicate"] * 4
    rows = sqlite_place.rows(f"SELECT DISTINCT seq >> {id_periods.BITS} FROM relay.events")
    assert rows == [(0,), (1,)]


async def test_events_are_found_by_id_and_by_its_beginning_in_all_periods(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    await through(sqlite_place, clock, ["abc1", "x"], ["abd1"], ["abc2", "abc"])
    async with opened(sqlite_place, clock) as store:
        await accept(store, event("abc3", source="other"), verdicts=[])

        async def named(beginning: str, **where: str | None) -> list[tuple[str, str]]:
            asked = {"source": None, **where}
            found = await store.events.named(beginning, limit=3, **asked)
            return [(each.source, each.id) for each in found]

        async def listed(selection: Selection) -> list[str]:
            found = await store.events.page(selection, [], limit=9)
            return [each.id for each in found]

        assert await named("abc") == [("main", "abc")]
        assert await named("ab") == [("main", "abc"), ("main", "abc1"), ("main", "abc2")]
        assert await named("abc3") == [("other", "abc3")]
        assert await named("ab", source="other") == [("other", "abc3")]
        assert await named("z") == []
        assert await listed(Selection(id="abc1")) == ["abc1"]
        assert await listed(Selection(id="abc1", source="other")) == []
        assert await listed(Selection(id_prefix="abc")) == ["abc3", "abc", "abc2", "abc1"]
        assert await store.events.sources() == ["main", "other"]


async def test_a_period_without_events_is_forgotten(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    await through(sqlite_place, clock, "a", "b")
    clock.ms += (KEPT_DAYS + 1) * DAY_MS
    async with opened(sqlite_place, clock) as store:
        late = [replace(event(name), received_ms=clock.ms) for name in ("a", "later")]
        assert await accept(store, late[1], verdicts=[]) == ["accepted"]
        while await store.expire(now_ms=clock.ms):
            pass
        assert await accept(store, late[0], verdicts=[]) == ["accepted"]
    assert sqlite_place.rows("SELECT block FROM relay.id_filters") == [(0,)]
    go_to(sqlite_place, id_periods.first(3 * BLOCK))
    async with opened(sqlite_place, clock) as store:
        await accept(store, replace(late[0], id="last"), verdicts=[])
        await filters_made(store)
        assert await accept(store, late[0], verdicts=[]) == ["duplicate"]
    assert sqlite_place.rows("SELECT block, periods FROM relay.id_filters") == [(0, 7)]
    clock.ms += (KEPT_DAYS + 1) * DAY_MS
    async with opened(sqlite_place, clock) as store:
        while await store.expire(now_ms=clock.ms):
            pass
        assert await accept(store, replace(late[0], received_ms=clock.ms), verdicts=[]) == [
            "accepted"
        ]
        await store.filters.close()
    go_to(sqlite_place, id_periods.first(4 * BLOCK))
    async with opened(sqlite_place, clock) as store:
        await accept(store, event("other"), verdicts=[])
        await filters_made(store)
    assert sqlite_place.rows("SELECT block, periods FROM relay.id_filters") == [(3, 1)]


async def test_an_id_is_known_as_long_as_its_event_is(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    await through(sqlite_place, clock, "a")
    clock.ms += KEPT_DAYS * DAY_MS
    async with opened(sqlite_place, clock) as store:
        while await store.expire(now_ms=clock.ms):
            pass
        assert await accept(store, event("a"), verdicts=[]) == ["duplicate"]
        clock.ms += 1
        while await store.expire(now_ms=clock.ms):
            pass
        assert await accept(store, event("a"), verdicts=[]) == ["accepted"]


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE relay.id_filters SET bits = zeroblob(length(bits))",
        "UPDATE relay.id_filters SET bits = x''",
        "UPDATE relay.id_filters SET digest = x''",
        "DELETE FROM relay.id_filters",
    ],
)
async def test_a_damaged_filter_is_not_used_and_is_made_anew(
    sqlite_place: SqlitePlace, clock: ManualClock, harm: str
) -> None:
    await through(sqlite_place, clock, "a", "b")
    sound = sqlite_place.rows("SELECT * FROM relay.id_filters")
    sqlite_place.rows(harm)
    async with opened(sqlite_place, clock) as store:
        assert await accept(store, event("a"), event("b"), verdicts=[]) == ["duplicate"] * 2
        await filters_made(store)
    assert sqlite_place.rows("SELECT * FROM relay.id_filters") == sound


async def test_a_filter_of_the_current_period_is_not_used(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    await through(sqlite_place, clock, "a")
    sqlite_place.rows("UPDATE relay.id_filters SET block = 0, periods = 2")
    async with opened(sqlite_place, clock) as store:
        assert await accept(store, event("a"), event("new"), verdicts=[]) == [
            "duplicate",
            "accepted",
        ]
    go_to(sqlite_place, id_periods.first(2))
    async with opened(sqlite_place, clock) as store:
        await accept(store, event("other"), verdicts=[])
        await filters_made(store)
        assert await accept(store, event("new"), event("last"), verdicts=[]) == ["duplicate"] * 2


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (
            """
            INSERT INTO relay.events
            SELECT 300000, source, id, kind, created_at, received_at, digest, headers, body, 0
            FROM relay.events WHERE id = 'a'
            """,
            "event a of source main is stored twice, the second time as 300000",
        ),
        (
            "UPDATE relay.id_filters SET bits = zeroblob(length(bits))",
            "the filter of ids in block 0 is damaged",
        ),
        (
            "UPDATE relay.events SET id = 'changed' WHERE id = 'b'",
            "the filter of ids in block 0 lacks some",
        ),
    ],
)
async def test_an_inspection_reports_ids_that_are_not_right(
    sqlite_place: SqlitePlace, clock: ManualClock, harm: str, fault: str
) -> None:
    await through(sqlite_place, clock, "a", "b")
    assert (await inspect(sqlite_place.path)).faults == ()
    sqlite_place.rows(harm)
    (found,) = (await inspect(sqlite_place.path)).faults
    assert found.startswith(fault)


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (
            "DELETE FROM relay.ids WHERE id = 'a'",
            "event a of source main, number 1, is missing in the table ids",
        ),
        (
            "INSERT INTO relay.ids SELECT period, source, 'z', seq + 5 FROM relay.ids LIMIT 1",
            "the table ids has z of source main for event 6, which is absent or has another id",
        ),
    ],
    ids=["missing", "astray"],
)
async def test_an_inspection_reports_ids_in_which_the_table_and_the_events_differ(
    sqlite_place: SqlitePlace, clock: ManualClock, harm: str, fault: str
) -> None:
    await through(sqlite_place, clock, ["a", "b"])
    sqlite_place.rows(harm)
    assert fault in (await inspect(sqlite_place.path)).faults


async def test_an_erased_id_is_known_in_a_period_with_a_filter(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    await through(sqlite_place, clock, "a", "b")
    sqlite_place.rows("UPDATE relay.events SET id = 'erased-0123' WHERE id = 'a'")
    async with opened(sqlite_place, clock) as store:
        again = event("a"), event("erased-0123")
        assert await accept(store, *again, verdicts=[]) == ["accepted", "conflict"]
    assert (await inspect(sqlite_place.path)).faults == ()


async def test_a_block_whose_stored_filters_are_removed_keeps_those_in_use(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    await through(sqlite_place, clock, "a", "b")
    go_to(sqlite_place, end_of(2) - 2)
    async with opened(sqlite_place, clock) as store:
        await filters_made(store)
        await store._writer.execute("DELETE FROM id_filters", ())
        for number in range(9):
            assert await accept(store, event(f"e{number}"), verdicts=[]) == ["accepted"]
        await filters_made(store)
        again = [*map(event, ("a", "b", "last", "e0", "e8"))]
        assert await accept(store, *again, verdicts=[]) == ["duplicate"] * 5
    assert sqlite_place.rows("SELECT block, periods FROM relay.id_filters") == [(0, 7)]


async def test_many_periods_are_told_apart(sqlite_place: SqlitePlace, clock: ManualClock) -> None:
    count = 3 * BLOCK + 2
    await through(sqlite_place, clock, *([f"e{number}"] for number in range(count)))
    async with opened(sqlite_place, clock) as store:
        await filters_made(store)
        assert len(store.filters._ids.filters.periods()) == count
        again = [event(f"e{number}") for number in range(count)]
        assert await accept(store, *again, verdicts=[]) == ["duplicate"] * count
        assert not store.filters._ids.elsewhere("main", "new")


async def test_an_erased_reconstruction_is_in_no_stored_filter(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    await through(sqlite_place, clock, "a", "b")
    sqlite_place.rows("UPDATE relay.events SET reconstructed = 1 WHERE id = 'a'")
    email = event("a").document()["data"]["email"]
    async with opened(sqlite_place, clock) as store:
        await filters_made(store)
        await erase(store, email, now_ms=clock.ms)
        (erased,) = sqlite_place.rows("SELECT id FROM relay.events WHERE reconstructed = 1")
        assert sqlite_place.rows("SELECT * FROM relay.id_filters") == []
        outcomes = await accept(store, event(erased[0]), event("b"), event("a"), verdicts=[])
        assert outcomes == ["conflict", "duplicate", "accepted"]
    async with opened(sqlite_place, clock) as store:
        await filters_made(store)
    assert (await inspect(sqlite_place.path)).faults == ()


async def test_an_erasure_while_a_filter_is_made_is_in_no_stored_filter(
    sqlite_place: SqlitePlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = reconstructed(watched())
    async with opened(sqlite_place, clock) as store:
        await give(store, made)
    go_to(sqlite_place, id_periods.first(1))
    async with opened(sqlite_place, clock) as store:
        await accept(store, event("b"), verdicts=[])
        await filters_made(store)
    go_to(sqlite_place, id_periods.first(2))
    add_period = FilterBuilder._add_period
    async with opened(sqlite_place, clock) as store:

        async def add_and_erase(self: FilterBuilder, column: bytearray, period: int) -> None:
            await add_period(self, column, period)
            await erase(store, ANN, now_ms=clock.ms)

        monkeypatch.setattr(FilterBuilder, "_add_period", add_and_erase)
        await accept(store, event("c"), verdicts=[])
        await filters_made(store)
        places = id_filter.places(store.filters._ids.key, "main", made.id)
    columns = [bits for (bits,) in sqlite_place.rows("SELECT bits FROM relay.id_filters")]
    assert columns
    assert not any(id_filter.holds(bits, 0, places) for bits in columns)
