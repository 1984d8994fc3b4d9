"""Writes of the subjects that run twice, as after a commit whose outcome is unknown."""

from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from relay.core.event import LEAD_CAPTURED
from relay.store import Store
from relay.store.audit import Change as AuditedChange
from relay.store.postgres.driver import Database
from relay.store.reconstructions import ReadPosition
from relay.store.selection import Selection
from relay.store.sessions import KnownClient
from relay.store.sink_states import Change, StateSpan
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import OTHER, TAKES, accept
from tests.store.places import PostgresPlace
from tests.store.test_personal_data import erase, event
from tests.store.test_quarantine import begin, request, waiting
from tests.store.test_sessions import find, log_in


@pytest.fixture
async def store(
    postgres_place: PostgresPlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Store]:
    async with postgres_place.open(clock) as opened:
        background = cast("Any", opened)._shared.background
        transact = background.transact

        async def twice(work: Callable[[Database], Any], *done: Any) -> Any:
            await transact(work)
            return await transact(work, *done)

        monkeypatch.setattr(background, "transact", twice)
        yield opened


async def test_a_change_is_recorded_once(store: Store) -> None:
    change = AuditedChange(operation="pause_sink")
    numbers = [await store.audit.begin(change, now_ms=NOW_MS) for _ in range(2)]
    assert [each.id for each in await store.audit.newest(limit=9)] == numbers[::-1]


async def test_requests_are_counted_once_when_they_are_verified(store: Store) -> None:
    await begin(store)
    for _ in range(3):
        await store.quarantine.keep(request())
    kept = await store.quarantine.waiting("main", after=0, limit=2)
    await store.quarantine.release("main", [each.number for each in kept], duplicates=1)
    rotation = await store.quarantine.rotation("main")
    assert rotation is not None
    assert (rotation.kept, rotation.verified, rotation.duplicates) == (3, 2, 1)
    await store.quarantine.expire("main")
    assert await waiting(store) == []


async def test_a_session_and_known_clients_are_stored_once(store: Store) -> None:
    await log_in(store)
    assert await find(store) is not None
    client = KnownClient(b"mark", "admin", NOW_MS)
    await store.sessions.remember([client], now_ms=NOW_MS)
    assert await store.sessions.remembered(now_ms=NOW_MS) == [client]


async def test_a_state_is_noted_once(store: Store) -> None:
    for at_ms in (NOW_MS, NOW_MS + 5):
        await store.sink_states.note({"crm": Change("active")}, now_ms=at_ms)
    assert await store.sink_states.since(0) == {"crm": [StateSpan("active", NOW_MS, None)]}


async def test_a_replay_begins_and_ends_once(store: Store) -> None:
    mark = await store.events.newest()
    selection = Selection(kind=LEAD_CAPTURED)
    begun = await store.replays.begin(selection, total=1, until=mark, now_ms=NOW_MS)
    ended = await store.replays.end(begun, "done", now_ms=NOW_MS + 5)
    assert (ended.state, ended.ended_ms) == ("done", NOW_MS + 5)
    assert await store.replays.newest(before=None, limit=9) == [ended]


async def test_a_run_ends_once(store: Store) -> None:
    runs = store.reconstructions
    run = await runs.begin("main", since_ms=1, until_ms=2, dry_run=False, now_ms=NOW_MS)
    place = ReadPosition("ses_1", NOW_MS)
    ended = await runs.end(run, "done", report={"given": {}}, place=place, now_ms=NOW_MS + 5)
    assert await runs.run(run.id) == ended
    assert await runs.place("main") == place


async def test_an_erasure_counts_what_it_removes_once(store: Store) -> None:
    await accept(store, event("a"), event("b"), verdicts=[TAKES, OTHER])
    erased = await erase(store)
    assert (erased.events, erased.pending, erased.dead) == (2, 4, 0)
    (record,) = await store.personal_data.erasures(limit=9)
    assert (record.erasure, record.share) == (erased, 1.0)


async def test_a_pause_keeps_its_beginning(store: Store) -> None:
    for at_ms in (NOW_MS, NOW_MS + 5):
        await store.paused_sinks.pause("crm", now_ms=at_ms)
    assert await store.paused_sinks.all() == {"crm": NOW_MS}
    await store.paused_sinks.resume("crm")
    assert await store.paused_sinks.all() == {}
