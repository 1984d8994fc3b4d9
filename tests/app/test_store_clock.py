"""A relay goes by its store's clock, however wrong that of its machine is."""

import re
from pathlib import Path

import orjson
import pytest

from relay.core.clock import ClockSample, SynchronizedClock
from tests.app.cluster import Member, cluster, settings
from tests.caller import now_s, post, signed
from tests.guarantees.process import until
from tests.service import SINK, Relay, ShiftedClock, read, serving
from tests.store.places import PostgresPlace
from tests.stub_server import Reply, StubServer

SOON_S = 5.0
MINUTES_10_S = 630
"""And a half, so that what is shown may be a second less."""

HOUR_S = 3600


def shifted(shift_s: int) -> ShiftedClock:
    clock = ShiftedClock()
    clock.shift_s = shift_s
    return clock


async def send(relay: Relay, name: str, *, at_s: int | None = None) -> int:
    body = orjson.dumps({"id": name, "event": "lead.captured", "data": {}})
    signature = ("Service-Signature", signed(body, at_s=at_s))
    return (await relay.ask(post(body, signature, sign=False))).status


async def said_of_clocks(member: Member) -> list[str]:
    report = await member.operator.get("/status")
    return [each["what"] for each in report["problems"] if "clock" in each["what"]]


def received(destination: StubServer) -> set[tuple[str, str]]:
    """Return the path and the event of each request."""
    return {(each.target, str(orjson.loads(each.body)["id"])) for each in destination.requests}


async def test_a_store_in_a_file_has_the_clock_of_the_machine(tmp_path: Path) -> None:
    async with serving(read(tmp_path), clock=shifted(-MINUTES_10_S)) as relay:
        assert await send(relay, "a", at_s=now_s() - MINUTES_10_S) == 202
        assert await relay.counts("relay_clock_offset_seconds") == {}


@pytest.mark.long
async def test_members_ten_minutes_behind_and_ahead_deliver_each_others_events_at_once(
    tmp_path: Path, place: PostgresPlace, destination: StubServer
) -> None:
    # So many that each relay owns some.
    others = "".join(
        SINK.format(name=name, url=destination.url(f"/{name}"), more="") for name in "abc"
    )
    configs = [
        settings(tmp_path / name, place, destination, more=others) for name in ("behind", "ahead")
    ]
    clocks = [shifted(-MINUTES_10_S), shifted(MINUTES_10_S)]
    async with cluster(place, *configs, clocks=clocks) as members:
        for name, member in zip(("a", "b"), members, strict=True):
            assert await send(member.relay, name) == 202
        expected = {(path, name) for path in ("/", "/a", "/b", "/c") for name in "ab"}
        await until(
            lambda: received(destination) == expected,
            what="both events at all sinks",
            deadline_s=SOON_S,
        )
        for member, side in zip(members, ("behind the", "ahead of the"), strict=True):
            (what,) = await said_of_clocks(member)
            assert re.fullmatch(rf"this host's clock is 10 min \d+ s {side} database's", what)
        offsets = [await each.relay.counts("relay_clock_offset_seconds") for each in members]
        assert [round(each[()]) for each in offsets] == [-MINUTES_10_S, MINUTES_10_S]


class Database:
    """The database's clock, as the relays' samples have it."""

    def __init__(self) -> None:
        self.ahead_s = 0


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    database, adopt = Database(), SynchronizedClock.adopt

    def adopt_shifted(clock: SynchronizedClock, sample: ClockSample) -> int:
        server_ns = sample.server_ns + database.ahead_s * 1_000_000_000
        return adopt(clock, sample._replace(server_ns=server_ns))

    monkeypatch.setattr(SynchronizedClock, "adopt", adopt_shifted)
    return database


@pytest.mark.long
@pytest.mark.parametrize(
    ("step_s", "retry"), [(2 * HOUR_S, "1h"), (-2 * HOUR_S, "2s")], ids=["forwards", "back"]
)
async def test_a_delivery_is_tried_again_soon_when_the_databases_clock_is_set(
    step_s: int, retry: str, tmp_path: Path, place: PostgresPlace, database: Database
) -> None:
    database.ahead_s = max(0, -step_s)
    waits = f'retry = {{ first = "{retry}", max = "{retry}" }}'
    async with StubServer() as destination:
        destination.reply = lambda _: Reply(500)
        config = settings(tmp_path, place, destination, more=waits)
        async with cluster(place, config) as (member,):
            assert await send(member.relay, "a", at_s=now_s() + database.ahead_s) == 202
            retried = "SELECT 1 FROM relay.deliveries WHERE tries = 1 AND status = 'pending'"
            await until(lambda: bool(place.rows(retried)), what="a failed try")
            destination.reply = lambda _: Reply()
            database.ahead_s += step_s
            await until(
                lambda: len(destination.requests) == 2, what="a second try", deadline_s=2 * SOON_S
            )
            (line,) = member.relay.lines("store.clock_set")
            assert round(line["seconds"]) == step_s
