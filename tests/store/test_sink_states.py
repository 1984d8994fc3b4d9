"""States of sinks over the last days."""

from random import Random
from typing import Any

from relay.core.sink_status import State
from relay.store import Store
from relay.store.sink_states import KEPT_MS, Change, LeftState, StateSpan
from tests.conftest import NOW_MS, ManualClock
from tests.store.places import Place, PostgresPlace

SECOND_MS = 1000
DAY_MS = 86_400_000
STATES: tuple[State, ...] = ("active", "throttled", "parked", "paused")


async def note(store: Store, at_ms: int, **states: State | None) -> None:
    changes = {sink: Change(state) for sink, state in states.items()}
    await store.sink_states.note(changes, now_ms=at_ms)


async def spans(
    store: Store, sink: str = "crm", *, since_ms: int = 0
) -> list[tuple[State | None, int, int | None]]:
    """Return a sink's spans, with times since `NOW_MS`."""
    found = (await store.sink_states.since(since_ms)).get(sink, ())
    return [
        (span.state, span.from_ms - NOW_MS, None if span.to_ms is None else span.to_ms - NOW_MS)
        for span in found
    ]


def rows(place: Place) -> list[Any]:
    return place.rows("SELECT sink, at, state FROM relay.sink_states ORDER BY 1, 2")


async def test_changes_are_spans_after_a_restart(place: Place) -> None:
    async with place.open(ManualClock()) as store:
        assert await store.sink_states.since(0) == {}
        await note(store, NOW_MS, crm="active", slack="paused")
        await note(store, NOW_MS + 5, crm="parked")
    async with place.open(ManualClock()) as store:
        assert await store.sink_states.since(0) == {
            "crm": [StateSpan("active", NOW_MS, NOW_MS + 5), StateSpan("parked", NOW_MS + 5, None)],
            "slack": [StateSpan("paused", NOW_MS, None)],
        }


async def left(store: Store, sink: str = "crm") -> LeftState | None:
    return (await store.sink_states.left(("another", sink))).get(sink)


async def test_a_state_in_which_a_sink_was_left_goes_on_over_unknown_times(store: Store) -> None:
    assert await left(store) is None
    await note(store, NOW_MS, crm=None, other="parked")
    assert await left(store) is None
    changes: dict[int, State | None] = {1: "active", 5: "parked", 10: None, 15: "parked", 20: None}
    for at_ms, state in changes.items():
        await note(store, NOW_MS + at_ms, crm=state)
    assert await left(store) == LeftState("parked", NOW_MS + 5, was_parked=True)
    await note(store, NOW_MS + 25, crm="active")
    assert await left(store) == LeftState("active", NOW_MS + 25, was_parked=False)


async def test_a_parked_sink_that_was_paused_since_is_still_known_as_parked(store: Store) -> None:
    states: tuple[State | None, ...] = ("active", "parked", "paused", None, "paused")
    for at_ms, state in enumerate(states):
        await note(store, NOW_MS + at_ms, crm=state)
    assert await left(store) == LeftState("paused", NOW_MS + 2, was_parked=True)


async def test_a_state_is_as_old_as_it_is_however_long_changes_are_kept(store: Store) -> None:
    await note(store, NOW_MS, crm="parked")
    await note(store, NOW_MS + 2 * KEPT_MS, other="active")
    assert await left(store) == LeftState("parked", NOW_MS, was_parked=True)


async def test_states_in_which_sinks_were_left_are_those_of_a_plain_list(store: Store) -> None:
    random = Random(7)
    changes: list[tuple[int, State]] = []
    for at_ms in range(NOW_MS, NOW_MS + 60):
        state = random.choice((*STATES, None))
        await note(store, at_ms, crm=state, other=random.choice(STATES))
        if state is not None:
            changes.append((at_ms, state))
        if not changes:
            continue
        (last_ms, last), *before = reversed(changes)
        for earlier_ms, earlier in before:
            if earlier != last:
                break
            last_ms = earlier_ms
        shown = [each for _, each in changes if each in ("active", "parked")]
        assert await left(store) == LeftState(last, last_ms, shown[-1:] == ["parked"])


async def test_the_same_state_again_adds_no_row(store: Store, place: Place) -> None:
    await note(store, NOW_MS, crm="active", gone=None)
    await note(store, NOW_MS + 5, crm="active", gone=None)
    assert rows(place) == [("crm", NOW_MS, "active")]


async def test_a_state_is_recorded_from_its_beginning_on(store: Store) -> None:
    await note(store, NOW_MS, crm="active")
    changes: list[tuple[State, int, int]] = [
        ("parked", 7, 10),
        ("active", 3, 20),
        ("paused", 99, 30),
    ]
    for state, since_ms, now_ms in changes:
        change = Change(state, NOW_MS + since_ms)
        await store.sink_states.note({"crm": change}, now_ms=NOW_MS + now_ms)
    # Neither before the last change nor in the future.
    assert await spans(store) == [
        ("active", 0, 7),
        ("parked", 7, 20),
        ("active", 20, 30),
        ("paused", 30, None),
    ]


async def test_spans_begin_at_the_requested_time(store: Store) -> None:
    await note(store, NOW_MS, crm="active")
    await note(store, NOW_MS + 10, crm="parked")
    await note(store, NOW_MS + 20, crm="active")
    assert await spans(store, since_ms=NOW_MS + 9) == [
        ("active", 9, 10),
        ("parked", 10, 20),
        ("active", 20, None),
    ]
    assert await spans(store, since_ms=NOW_MS + 10) == [("parked", 10, 20), ("active", 20, None)]
    assert await spans(store, since_ms=NOW_MS + 99) == [("active", 99, None)]
    assert (await spans(store, since_ms=NOW_MS - 5))[0] == ("active", 0, 10)


async def test_a_sink_that_is_gone_has_no_known_state(store: Store) -> None:
    await note(store, NOW_MS, crm="parked")
    await note(store, NOW_MS + 5, crm=None)
    await note(store, NOW_MS + 9, crm="active")
    assert await spans(store) == [("parked", 0, 5), (None, 5, 9), ("active", 9, None)]


async def test_old_changes_are_removed_but_never_a_current_state(
    store: Store, place: Place
) -> None:
    await note(store, NOW_MS, calm="active", crm="active", gone="parked")
    await note(store, NOW_MS + 1, crm="parked", gone=None)
    await note(store, NOW_MS + 2, crm="active")
    now_ms = NOW_MS + 3 + KEPT_MS
    await note(store, now_ms, crm="paused")
    assert rows(place) == [
        ("calm", NOW_MS, "active"),
        ("crm", NOW_MS + 2, "active"),
        ("crm", now_ms, "paused"),
    ]
    assert await spans(store, "calm", since_ms=now_ms) == [("active", 3 + KEPT_MS, None)]


async def test_the_last_change_counts_while_the_clock_stands_still(store: Store) -> None:
    await note(store, NOW_MS - 5, crm="active")
    for state in ("parked", "throttled", "paused"):
        await note(store, NOW_MS, crm=state)
    assert await spans(store) == [("active", -5, 0), ("paused", 0, None)]
    await note(store, NOW_MS, crm="active")
    assert await spans(store) == [("active", -5, None)]


async def test_changes_from_before_the_clock_was_set_back_are_one(
    store: Store, place: Place
) -> None:
    await note(store, NOW_MS, crm="active", calm="active")
    await note(store, NOW_MS + DAY_MS, crm="parked", calm="paused")
    await note(store, NOW_MS + DAY_MS + 5, crm="paused")
    await note(store, NOW_MS + 10, crm="active")
    assert await spans(store) == [("active", 0, None)]
    assert await spans(store, "calm") == [("active", 0, 10), ("paused", 10, None)]
    assert all(at <= NOW_MS + 10 for _, at, _ in rows(place))


async def test_spans_are_those_of_a_plain_list_of_changes(store: Store, place: Place) -> None:
    random = Random(11)
    changes: list[tuple[int, State | None]] = []
    for _ in range(120):
        at_ms = (changes[-1][0] if changes else NOW_MS) + random.randrange(1, DAY_MS // 4)
        changes.append((at_ms, random.choice((*STATES, None))))
        await note(store, at_ms, crm=changes[-1][1], other=random.choice(STATES))
        since_ms = at_ms - random.randrange(KEPT_MS)
        moments = [random.randrange(since_ms, at_ms + 1) for _ in range(5)]
        found = (await store.sink_states.since(since_ms)).get("crm", ())
        for moment in moments:
            expected = next((state for at, state in reversed(changes) if at <= moment), None)
            covering = [
                span.state
                for span in found
                if span.from_ms <= moment and (span.to_ms is None or moment < span.to_ms)
            ]
            assert covering == [expected] or (covering == [] and expected is None)
    assert len(rows(place)) < 120


async def test_a_relay_whose_clock_is_behind_leaves_others_sinks_as_they_are(
    postgres_place: PostgresPlace,
) -> None:
    async with postgres_place.open(ManualClock()) as store:
        await note(store, NOW_MS, crm="active", slack="active")
        await note(store, NOW_MS + 5 * SECOND_MS, crm="parked")
        await note(store, NOW_MS + 9 * SECOND_MS, crm="active")
        await note(store, NOW_MS + SECOND_MS, slack="paused")
        assert rows(postgres_place) == [
            ("crm", NOW_MS, "active"),
            ("crm", NOW_MS + 5 * SECOND_MS, "parked"),
            ("crm", NOW_MS + 9 * SECOND_MS, "active"),
            ("slack", NOW_MS, "active"),
            ("slack", NOW_MS + SECOND_MS, "paused"),
        ]
