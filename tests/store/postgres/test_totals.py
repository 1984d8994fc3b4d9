"""What acceptances have added to the totals is summed up by any relay, and counted once."""

import asyncio

import pytest

from relay.store.postgres import totals
from relay.store.postgres.store import FOLLOW_EVERY_S
from tests.conftest import ManualClock
from tests.store.conformance import accept, event
from tests.store.places import PostgresPlace


async def test_relays_that_sum_up_at_once_count_each_event_once(
    postgres_place: PostgresPlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals, "ADDED_MAX", 0)
    counted: list[int] = []
    async with (
        postgres_place.open(clock) as one,
        postgres_place.open(clock, counted=lambda total: counted.append(total.events)) as other,
    ):
        for number in range(30):
            await accept(one, event(f"e{number}"))
            clock.ms += round(FOLLOW_EVERY_S * 1000)
            await asyncio.gather(one.backlogs(), other.backlogs())
        assert counted == list(range(1, 31))
        for store in (one, other):
            assert [total.events for total in store.totals("main")] == [30]
    assert postgres_place.rows("SELECT events FROM relay.totals") == [(30,)]
    assert postgres_place.rows("SELECT count(*) FROM relay.added_totals") == [(0,)]
