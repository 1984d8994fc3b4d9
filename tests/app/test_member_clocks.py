"""Relays that share a store go by its clock, however wrong those of their machines are."""

from pathlib import Path

import orjson
import pytest

from tests.app.cluster import Member, cluster, settings
from tests.caller import post
from tests.guarantees.process import until
from tests.service import SINK, ShiftedClock
from tests.store.places import PostgresPlace
from tests.stub_server import StubServer

pytestmark = pytest.mark.long

SOON_S = 5.0
MINUTES_10_S = 600


def shifted(shift_s: int) -> ShiftedClock:
    clock = ShiftedClock()
    clock.shift_s = shift_s
    return clock


async def send(member: Member, name: str) -> int:
    body = orjson.dumps({"id": name, "event": "lead.captured", "data": {}})
    return (await member.relay.ask(post(body))).status


def received(destination: StubServer) -> set[tuple[str, str]]:
    """Return the path and the event of each request."""
    return {(each.target, str(orjson.loads(each.body)["id"])) for each in destination.requests}


async def test_members_ten_minutes_behind_and_ahead_deliver_each_others_events_at_once(
    tmp_path: Path, place: PostgresPlace
) -> None:
    async with StubServer() as destination:
        # So many that each relay owns some.
        others = "".join(
            SINK.format(name=name, url=destination.url(f"/{name}"), more="") for name in "abc"
        )
        configs = [
            settings(tmp_path / name, place, destination, more=others)
            for name in ("behind", "ahead")
        ]
        clocks = [shifted(-MINUTES_10_S), shifted(MINUTES_10_S)]
        async with cluster(place, *configs, clocks=clocks) as members:
            for name, member in zip(("a", "b"), members, strict=True):
                assert await send(member, name) == 202
            expected = {(path, name) for path in ("/", "/a", "/b", "/c") for name in "ab"}
            await until(
                lambda: received(destination) == expected,
                what="both events at all sinks",
                deadline_s=SOON_S,
            )
