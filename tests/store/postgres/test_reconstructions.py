"""A reconstruction by one relay is superseded by its original, whichever relay that comes to."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from relay.core.delivery import Status
from relay.core.errors import NotReconciled
from relay.core.event import Event
from relay.store import Store
from relay.store.postgres import accept as acceptance
from relay.store.postgres import reconstruct
from relay.store.postgres.outstanding import REFRESH_S
from relay.store.postgres.store import PostgresStore
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import OTHER, TAKES, accept, lease, settlement
from tests.store.places import PostgresPlace
from tests.store.postgres.test_audience import WAITING, named, transaction
from tests.store.test_reconstructions import deliveries, give, people, reconstructed, watched
from tests.stub_server import until

MADE = reconstructed(watched())
WAITING_FOR_ROW = "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"


@pytest.fixture
async def members(
    postgres_place: PostgresPlace, clock: ManualClock
) -> AsyncIterator[tuple[Store, Store]]:
    async with postgres_place.open(clock) as one, postgres_place.open(clock) as other:
        yield one, other


async def test_an_original_supersedes_what_another_member_has_reconstructed(
    members: tuple[Store, Store], clock: ManualClock
) -> None:
    one, other = members
    assert await give(one, MADE) == "accepted"
    clock.ms += round(REFRESH_S * 1000)
    # An acceptance does not wait for the list that it reads on; a lease takes its turn after that.
    await accept(other, watched("earlier", milestone="50%"))
    await lease(other, "crm")
    assert await accept(other, watched()) == ["accepted"]
    assert await deliveries(one, MADE.id) == {"sales": Status.DISCARDED}
    assert await deliveries(one, "original") == {"sales": Status.PENDING}
    assert await people(one) == {"25%": (1, 1), "50%": (1, 1)}


async def test_a_member_that_is_notified_of_a_reconstruction_knows_its_original_at_once(
    members: tuple[Store, Store],
) -> None:
    one, other = members
    await accept(other, watched("earlier", milestone="50%"))
    assert await give(one, MADE) == "accepted"
    await knows(other, watched())
    await accept(other, watched())
    assert await deliveries(one, MADE.id) == {"sales": Status.DISCARDED}


async def knows(member: Store, original: Event) -> None:
    """Wait until a member knows the reconstruction of an original."""
    assert isinstance(member, PostgresStore)
    outstanding = member._shared.outstanding
    outstanding.refresh()
    await until(lambda: outstanding.find(original) is not None, what="the reconstruction")


async def test_an_original_is_not_sent_where_another_member_is_sending_its_reconstruction(
    members: tuple[Store, Store],
) -> None:
    one, other = members
    await give(one, MADE)
    (sending,) = (await lease(one)).deliveries
    await knows(other, watched())
    await accept(other, watched(), verdicts=(TAKES, OTHER))
    assert await deliveries(one, "original") == {"crm": Status.PENDING, "sales": Status.DISCARDED}
    await one.settle(settlement(sending))
    assert await deliveries(one, MADE.id) == {"sales": Status.DELIVERED}


async def test_an_original_is_sent_where_another_member_failed_to_send_its_reconstruction(
    members: tuple[Store, Store],
) -> None:
    one, other = members
    await give(one, MADE)
    (sending,) = (await lease(one)).deliveries
    await one.settle(settlement(sending, "retry"))
    await knows(other, watched())
    await accept(other, watched())
    assert await deliveries(one, MADE.id) == {"sales": Status.DISCARDED}
    assert [each.event.id for each in (await lease(one)).deliveries] == ["original"]


async def test_a_reconstruction_that_is_withdrawn_during_its_lease_is_not_sent(
    members: tuple[Store, Store], postgres_place: PostgresPlace
) -> None:
    one, _ = members
    await give(one, MADE)
    await accept(one, watched("earlier", milestone="50%"))
    with transaction(postgres_place) as db:
        db.execute(
            named(
                postgres_place,
                "UPDATE relay.deliveries SET status = 'discarded'"
                " WHERE event = (SELECT seq FROM relay.events WHERE id = %s)",
            ),
            (MADE.id,),
        )
        leasing = asyncio.create_task(lease(one))
        await until(lambda: postgres_place.rows(WAITING_FOR_ROW) != [], what="the wait")
    assert [each.event.id for each in (await leasing).deliveries] == ["earlier"]
    assert not one.is_leased("sales", 1)


async def test_a_member_that_does_not_know_yet_supersedes_it_with_the_count(
    members: tuple[Store, Store],
) -> None:
    one, other = members
    await accept(other, watched("earlier", milestone="50%"))
    await give(one, MADE, verdicts=(TAKES, OTHER))
    (sent,) = (await lease(one, "crm")).deliveries
    await one.settle(settlement(sent))
    await accept(other, watched(), verdicts=(TAKES, OTHER))
    assert await people(one) == {"25%": (1, 1), "50%": (1, 1)}
    assert await deliveries(one, MADE.id) == {"sales": Status.DISCARDED, "crm": Status.DELIVERED}
    assert await deliveries(one, "original") == {
        "sales": Status.PENDING,
        "crm": Status.DISCARDED,
    }


async def test_an_original_that_came_to_another_member_during_a_run_is_not_reconstructed(
    members: tuple[Store, Store],
) -> None:
    one, other = members
    await one.reconstructions.announce("main")
    await accept(other, watched())
    assert await give(one, MADE) == "arrived"
    later = reconstructed(watched(milestone="50%"))
    assert await give(one, later) == "accepted"
    one.reconstructions.conclude("main")


async def test_a_reconstruction_is_made_while_originals_of_others_never_pause(
    members: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = members
    await one.reconstructions.announce("main")
    add, loop = reconstruct.add, asyncio.get_running_loop()
    names = (f"later {number}" for number in count())

    def add_after_arrival(*arguments: Any, **more: Any) -> Any:
        later = watched(next(names), email="bob@example.com")
        asyncio.run_coroutine_threadsafe(accept(other, later), loop).result(10)
        return add(*arguments, **more)

    monkeypatch.setattr(reconstruct, "add", add_after_arrival)
    async with asyncio.timeout(10):
        assert await give(one, MADE) == "accepted"
    one.reconstructions.conclude("main")


async def test_a_reconstruction_waits_for_originals_that_are_being_accepted(
    members: tuple[Store, Store], postgres_place: PostgresPlace
) -> None:
    one, other = members
    await one.reconstructions.announce("main")
    with transaction(postgres_place) as db:
        db.execute(named(postgres_place, f"SELECT {acceptance.LOCK_SHARED}"))
        giving = asyncio.create_task(give(one, MADE))
        await until(lambda: postgres_place.rows(WAITING) != [], what="the wait for the lock")
        db.execute(
            named(
                postgres_place,
                "INSERT INTO relay.events (source, id, kind, received_at, digest, body)"
                " VALUES ('main', 'original', 'video.watched', %s, '', %s)",
            ),
            (NOW_MS, watched().body),
        )
    assert await giving == "arrived"
    assert await people(other) == {"25%": (1, 1)}


def register(place: PostgresPlace) -> None:
    """Let the members that run a reconciliation live."""
    place.rows(
        "INSERT INTO relay.members (id, name, version, address, config, sinks, since, beat_at)"
        " SELECT DISTINCT member, '', '', '', '', '{}'::text[], now(), now()"
        " FROM relay.reconciliations"
    )


async def test_a_run_belongs_to_the_member_that_began_it(
    members: tuple[Store, Store], postgres_place: PostgresPlace
) -> None:
    one, other = members
    run = await one.reconstructions.begin(
        "main", since_ms=1, until_ms=2, dry_run=False, now_ms=NOW_MS
    )
    assert (await one.reconstructions.runs(before=None, limit=5))[0].state == "running"
    (seen,) = await other.reconstructions.runs(before=None, limit=5)
    assert seen.state == "failed"
    register(postgres_place)
    found = await other.reconstructions.run(run.id)
    assert found is not None
    assert found.state == "running"


async def test_a_run_whose_end_could_not_be_written_is_over_when_its_member_begins_another(
    members: tuple[Store, Store],
) -> None:
    one, _ = members
    asked: Any = {"since_ms": 1, "until_ms": 2, "dry_run": False, "now_ms": NOW_MS}
    first = await one.reconstructions.begin("main", **asked)
    assert (await one.reconstructions.begin("main", **asked)).state == "running"
    found = await one.reconstructions.run(first.id)
    assert found is not None
    assert found.state == "failed"


async def test_a_source_has_one_run_at_a_time(
    members: tuple[Store, Store], postgres_place: PostgresPlace
) -> None:
    one, other = members
    asked: Any = {"since_ms": 1, "until_ms": 2, "dry_run": False, "now_ms": NOW_MS}
    first = await one.reconstructions.begin("main", **asked)
    register(postgres_place)
    with pytest.raises(NotReconciled, match=f"run {first.id} of source main is under way"):
        await other.reconstructions.begin("main", **asked)
    assert (await other.reconstructions.begin("academy", **asked)).state == "running"
    await one.reconstructions.end(first, "done", report=None, place=None, now_ms=NOW_MS)
    second = await other.reconstructions.begin("main", **asked)
    # The member has left without a word.
    postgres_place.rows("DELETE FROM relay.members")
    assert (await one.reconstructions.begin("main", **asked)).state == "running"
    found = await one.reconstructions.run(second.id)
    assert found is not None
    assert found.state == "failed"
