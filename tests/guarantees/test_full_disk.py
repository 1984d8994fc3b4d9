"""A full disk costs no event: 503 while it is full, and the service resumes by itself."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx

from relay.core.event import LEAD_CAPTURED
from tests.guarantees import ledger
from tests.guarantees.conftest import Say
from tests.guarantees.destinations import FAILING, WELL, Destination, Key
from tests.guarantees.process import Relay, until
from tests.guarantees.small_disk import SmallDisk
from tests.guarantees.traffic import Traffic, lead, post

MIB = 1 << 20
SHORT_OF_SPACE = ["the store is short of free space"]

SINKS = """
[[sink]]
name = "steady"
type = "http"
events = ["*", "webhook.test"]
url = "{steady}"

[[sink]]
name = "late"
type = "http"
events = ["*", "webhook.test"]
url = "{late}"
concurrency = 4
retry = {{ first = "50ms", max = "200ms" }}
"""


@dataclass(frozen=True)
class Scene:
    disk: SmallDisk
    relay: Relay
    traffic: Traffic
    steady: Destination
    late: Destination

    def accepted(self) -> set[Key]:
        return set(self.traffic.acknowledged)


@asynccontextmanager
async def _scene(folder: Path, random: Random, *, size: int, min_free: str) -> AsyncIterator[Scene]:
    """A relay on a small disk, one sink that takes all at once and one that fails at first."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        disk = await enter(SmallDisk(folder / "disk", size=size))
        steady, late = await enter(Destination("steady")), await enter(Destination("late", FAILING))
        relay = await enter(
            Relay(
                folder,
                sinks=SINKS.format(steady=steady.url, late=late.url),
                store=f'min_free = "{min_free}"',
                data=disk.folder / "data",
                prefix=disk.prefix,
            )
        )
        traffic = await enter(Traffic(relay.url, time_scale=0.02, random=random))
        await relay.start()
        yield Scene(disk, relay, traffic, steady, late)


async def test_a_full_disk_is_answered_503_until_there_is_room(
    tmp_path: Path, random: Random, say: Say
) -> None:
    async with _scene(tmp_path, random, size=8 * MIB, min_free="0B") as scene:
        await _flood(scene, count=50)
        pid = scene.relay.pid
        scene.disk.fill()
        before = scene.accepted()
        await _flood_until_refused(scene)
        refused = len(scene.traffic.posted) - len(scene.traffic.acknowledged)
        await until(lambda: _has_problems(scene.relay), what="/readyz to tell of the full disk")
        assert await scene.relay.problems() == SHORT_OF_SPACE
        # What was accepted goes on its way although no outcome can be written down.
        scene.late.mood = WELL
        await until(lambda: len(scene.late.taken) >= 4, what="deliveries while the disk is full")
        await _assert_refused_with_retry_after(scene)
        scene.disk.make_room()
        await until(scene.relay.is_ready, what="/readyz once there is room")
        assert scene.relay.pid == pid
        assert await scene.traffic.send(LEAD_CAPTURED)
        accepted_while_full = len(scene.accepted() - before) - 1
        await _prove_all_arrived(scene)
    say(
        f"full disk: {len(scene.traffic.acknowledged)} events acknowledged, "
        f"{accepted_while_full} of them in the last room, {refused} refused, none lost"
    )


async def test_below_the_floor_nothing_is_taken_and_everything_goes_out(
    tmp_path: Path, random: Random
) -> None:
    async with _scene(tmp_path, random, size=16 * MIB, min_free="4MiB") as scene:
        await _flood(scene, count=50)
        scene.disk.fill(leave=3 * MIB)
        await until(lambda: _has_problems(scene.relay), what="/readyz to tell of the floor")
        assert await scene.relay.problems() == SHORT_OF_SPACE
        await _assert_refused_with_retry_after(scene)
        scene.late.mood = WELL
        await until(
            lambda: _has_settled(scene.relay, 100), what="the end of the backlog below the floor"
        )
        scene.disk.make_room()
        await until(scene.relay.is_ready, what="/readyz once there is room")
        assert await scene.traffic.send(LEAD_CAPTURED)
        await _prove_all_arrived(scene)


async def test_a_sender_that_tries_again_loses_nothing_to_a_full_disk(
    tmp_path: Path, random: Random
) -> None:
    async with _scene(tmp_path, random, size=8 * MIB, min_free="0B") as scene:
        scene.late.mood = WELL
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(scene.traffic.flow(stop, pause_s=0.01))
            for _ in range(3):
                await asyncio.sleep(0.3)
                scene.disk.fill()
                refused = scene.traffic.statuses.count(503)
                await until(
                    lambda refused=refused: scene.traffic.statuses.count(503) > refused,  # type: ignore[misc]
                    what="503 on a full disk",
                )
                scene.disk.make_room()
                await until(scene.relay.is_ready, what="/readyz once there is room")
            stop.set()
        assert scene.accepted() == set(scene.traffic.posted)
        await _prove_all_arrived(scene)


async def test_a_kill_on_a_full_disk_loses_nothing(tmp_path: Path, random: Random) -> None:
    async with _scene(tmp_path, random, size=8 * MIB, min_free="0B") as scene:
        await _flood(scene, count=50)
        scene.disk.fill()
        await _flood_until_refused(scene)
        await scene.relay.kill()
        await scene.relay.spawn()
        assert await scene.relay.exit() == os.EX_TEMPFAIL
        assert scene.relay.output().endswith("cannot be opened: the disk is full\n")
        scene.disk.make_room()
        scene.late.mood = WELL
        await scene.relay.start()
        await _prove_all_arrived(scene)


async def _flood(scene: Scene, *, count: int) -> None:
    await asyncio.gather(*(scene.traffic.send(LEAD_CAPTURED) for _ in range(count)))
    assert len(scene.accepted()) == count


async def _flood_until_refused(scene: Scene) -> None:
    """Send one event after the other, once each, until the last room of the store is used up."""
    for _ in range(20_000):
        if await scene.traffic.attempt(LEAD_CAPTURED) == httpx.codes.SERVICE_UNAVAILABLE:
            return
    raise AssertionError("a full disk takes events for ever")


async def _has_problems(relay: Relay) -> bool:
    return bool(await relay.problems())


async def _has_no_backlog(relay: Relay) -> bool:
    return await relay.metric("relay_pending_deliveries") == 0


async def _has_settled(relay: Relay, count: int) -> bool:
    return await relay.metric("relay_deliveries_total", outcome="delivered") == count


async def _assert_refused_with_retry_after(scene: Scene) -> None:
    answer = await post(scene.relay.url, lead("evt_refused"))
    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json() == {"status": "unavailable"}


async def _prove_all_arrived(scene: Scene) -> None:
    """Every acknowledged event is in the store and was taken exactly once by each sink."""
    store = scene.disk.outside(scene.relay.store)
    await until(
        lambda: scene.accepted() <= set(scene.steady.taken) & set(scene.late.taken),
        what="every acknowledged event at both sinks",
    )
    await until(lambda: _has_no_backlog(scene.relay), what="the end of the backlog")
    assert await scene.relay.stop() == 0, scene.relay.output()
    end = ledger.read(store)
    assert end.integrity == "ok"
    assert end.events == scene.accepted()
    assert end.places("delivered") == {
        (sink, key) for sink in ("steady", "late") for key in end.events
    }
    for destination in (scene.steady, scene.late):
        assert set(destination.taken) == end.events
