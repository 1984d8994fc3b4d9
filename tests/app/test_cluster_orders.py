"""An operator's orders reach the relay that dispatches the sink, whichever relay takes them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from tests.app.cluster import SALES, Member, cluster, settings
from tests.caller import SECRET, post, signed
from tests.guarantees.process import until
from tests.service import OTHER_SECRET
from tests.store.places import PostgresPlace
from tests.stub_server import Reply, StubServer

pytestmark = pytest.mark.long

SOON_S = 5.0
"""Far below any retry or poll that would bring it about without the order."""

LONG_RETRY = 'retry = { first = "1h", max = "1h" }'


class Scene:
    """Two relays: one owns the sink, the other is asked by the operator."""

    def __init__(self, destination: StubServer, members: list[Member]) -> None:
        self.destination = destination
        self.owner, self.other = sorted(members, key=Member.owns, reverse=True)

    async def send(self, name: str, *, secret: str = SECRET) -> int:
        body = orjson.dumps({"id": name, "event": "lead.captured", "data": {}})
        signature = ("Service-Signature", signed(body, secret=secret))
        return (await self.owner.relay.ask(post(body, signature, sign=False))).status

    def received(self) -> list[str]:
        return [str(orjson.loads(each.body)["id"]) for each in self.destination.requests]

    async def until_received(self, *names: str) -> None:
        await until(
            lambda: self.received() == list(names),
            what=f"{names} at the destination",
            deadline_s=SOON_S,
        )

    async def until_state(self, state: str) -> None:
        await until(
            lambda: self.owner.condition().state == state,
            what=f"a {state} sink",
            deadline_s=SOON_S,
        )

    async def order(self, action: str, **body: str) -> None:
        await self.other.operator.post(f"/sinks/{SALES}/{action}", body)


@asynccontextmanager
async def scene(folder: Path, place: PostgresPlace) -> AsyncIterator[Scene]:
    async with StubServer() as destination:
        configs = [
            settings(folder / name, place, destination, more=LONG_RETRY) for name in ("a", "b")
        ]
        async with cluster(place, *configs) as members:
            yield Scene(destination, members)


async def test_a_pause_and_a_resumption_reach_the_owner(
    tmp_path: Path, place: PostgresPlace
) -> None:
    async with scene(tmp_path, place) as there:
        await there.order("pause")
        await there.until_state("paused")
        assert await there.send("a") == 202
        await until(lambda: there.other.condition().state == "paused", what="word of the owner")
        assert there.received() == []
        await there.order("resume")
        await there.until_received("a")


async def test_a_retry_tries_a_failing_sink_at_once(tmp_path: Path, place: PostgresPlace) -> None:
    async with scene(tmp_path, place) as there:
        there.destination.reply = lambda _: Reply(500)
        await there.send("a")
        await until(lambda: there.received() == ["a"], what="the first attempt")
        there.destination.reply = lambda _: Reply()
        await there.order("retry")
        await there.until_received("a", "a")


async def test_a_discarded_delivery_is_not_sent(tmp_path: Path, place: PostgresPlace) -> None:
    async with scene(tmp_path, place) as there:
        await there.order("pause")
        await there.until_state("paused")
        await there.send("a")
        await there.send("b")
        await there.order("discard", id="a")
        await there.order("resume")
        await there.until_received("b")


async def test_a_replay_is_advanced_wherever_it_was_begun(
    tmp_path: Path, place: PostgresPlace
) -> None:
    async with scene(tmp_path, place) as there:
        await there.send("a")
        settled = "SELECT 1 FROM relay.deliveries WHERE status = 'delivered'"
        await until(lambda: bool(place.rows(settled)), what="the end of the delivery")
        await there.other.operator.post("/replays", {"id": "a"})
        await there.until_received("a", "a")


async def test_nothing_of_a_cancelled_replay_is_sent(tmp_path: Path, place: PostgresPlace) -> None:
    async with scene(tmp_path, place) as there:
        await there.send("a")
        settled = "SELECT 1 FROM relay.deliveries WHERE status = 'delivered'"
        await until(lambda: bool(place.rows(settled)), what="the end of the delivery")
        await there.order("pause")
        await there.until_state("paused")
        begun = await there.other.operator.post("/replays", {"id": "a"})
        pending = f"SELECT 1 FROM relay.deliveries WHERE replay = {begun['id']}"
        await until(lambda: bool(place.rows(pending)), what="the replay's delivery")
        await there.other.operator.post(f"/replays/{begun['id']}/cancel")
        await there.order("resume")
        await there.until_state("active")
        await there.send("b")
        await there.until_received("a", "b")


async def test_a_rotation_begun_at_one_relay_quarantines_at_all(
    tmp_path: Path, place: PostgresPlace
) -> None:
    async with scene(tmp_path, place) as there:
        await there.other.operator.post("/sources/main/rotation", {"duration_ms": 900_000})

        async def is_kept() -> bool:
            assert await there.send("a", secret=OTHER_SECRET) == 401
            return bool(place.rows("SELECT 1 FROM relay.quarantine"))

        await until(is_kept, what="a request in quarantine", deadline_s=SOON_S)
