"""A disk that fails is believed: no 2xx after it, and nothing that was answered 2xx is missing."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

import pytest

from relay.core.event import LEAD_CAPTURED
from relay.store.sqlite.driver import sqlite3
from tests import service
from tests.guarantees import faulty_disk as faults
from tests.guarantees import ledger
from tests.guarantees.destinations import Destination
from tests.guarantees.process import Relay, until
from tests.guarantees.traffic import Traffic, lead, post

PAGE = 4096
INTERIOR = 0x05

SINK = service.SINK.format(name="crm", url="{url}", more="")


@pytest.fixture(scope="session")
def faulty_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes system calls fail, built now."""
    return faults.build(tmp_path_factory.mktemp("faults"))


@dataclass(frozen=True)
class Scene:
    relay: Relay
    traffic: Traffic
    destination: Destination
    fault: Path

    def let(self, happen: str) -> None:
        faults.let(self.fault, happen)

    def heal(self) -> None:
        self.fault.unlink()


@asynccontextmanager
async def _scene(
    folder: Path, random: Random, *, library: Path | None = None, server: str = ""
) -> AsyncIterator[Scene]:
    fault = folder / "fault"
    environ = {"RELAY_FAULT": str(fault)}
    if library is not None:
        environ["LD_PRELOAD"] = str(library)
    async with AsyncExitStack() as stack:
        destination = await stack.enter_async_context(Destination("crm"))
        relay = await stack.enter_async_context(
            Relay(folder, sinks=SINK.format(url=destination.url), server=server, environ=environ)
        )
        traffic = await stack.enter_async_context(
            Traffic(relay.url, time_scale=0.02, random=random)
        )
        await relay.start()
        yield Scene(relay, traffic, destination, fault)


# A sync that fails has lost nobody knows what, also where the file system says that it was a quota.
@pytest.mark.parametrize("fault", ["sync-fails", "write-fails", "quota-sync"])
async def test_after_a_failed_write_or_sync_nothing_is_acknowledged(
    tmp_path: Path, random: Random, faulty_disk: Path, fault: str
) -> None:
    async with _scene(tmp_path, random, library=faulty_disk) as scene:
        await _send(scene, 20)
        assert len(scene.traffic.acknowledged) == 20
        scene.let(fault)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(_send_until_gone(scene))
            assert await scene.relay.exit() == os.EX_IOERR
            sending.cancel()
        assert set(scene.traffic.statuses[20:]) <= {503, None}
        [line] = scene.relay.lines("store.broken")
        assert "cannot be written" in str(line["reason"])
        assert "Traceback" not in scene.relay.output(last=1 << 20)
        scene.heal()
        await _prove_all_is_there(scene)


async def test_an_exhausted_quota_counts_as_a_full_disk_and_ends_nothing(
    tmp_path: Path, random: Random, faulty_disk: Path
) -> None:
    async with _scene(tmp_path, random, library=faulty_disk) as scene:
        await _send(scene, 20)
        pid = scene.relay.pid
        scene.let("quota")
        await _send(scene, 20)
        assert set(scene.traffic.statuses[20:]) == {503}
        assert await scene.relay.problems() == ["the store is short of free space"]
        why = "the disk's quota is used up (SQLITE_IOERR_WRITE)"
        await until(lambda: why in _reasons(scene), what="a line in the log")
        scene.heal()
        await until(scene.relay.is_ready, what="/readyz once there is room")
        assert scene.relay.pid == pid
        await _send(scene, 20)
        assert scene.traffic.statuses[40:] == [202] * 20
        await scene.relay.kill()
        await _prove_all_is_there(scene)


async def test_a_start_with_an_exhausted_quota_ends_as_on_a_full_disk(
    tmp_path: Path, random: Random, faulty_disk: Path
) -> None:
    async with _scene(tmp_path, random, library=faulty_disk) as scene:
        await _send(scene, 20)
        await scene.relay.kill()
        scene.let("quota")
        await scene.relay.spawn()
        assert await scene.relay.exit() == os.EX_TEMPFAIL
        assert "cannot be opened: the disk's quota is used up" in scene.relay.output()
        scene.heal()
        await _prove_all_is_there(scene)


async def test_nothing_is_acknowledged_before_the_sync(
    tmp_path: Path, random: Random, faulty_disk: Path
) -> None:
    async with _scene(
        tmp_path, random, library=faulty_disk, server='ack_timeout = "500ms"'
    ) as scene:
        await _send(scene, 5)
        scene.let("sync-hangs")
        slow = await post(scene.relay.url, lead("evt_slow"))
        assert slow.status_code == 503
        assert int(slow.headers["retry-after"]) > 0
        # Until the next probe, it says what the acceptance met.
        told = ["the store accepts no events"]
        async with asyncio.timeout(10):
            while (problems := await scene.relay.problems()) == told:
                await asyncio.sleep(0.1)
        assert problems == ["the store has not committed within 2 s"]
        waiting = asyncio.create_task(post(scene.relay.url, lead("evt_waiting")))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        scene.heal()
        assert (await waiting).status_code == 202
        # What was answered 503 was written all the same, so its repetition is a duplicate.
        assert (await post(scene.relay.url, lead("evt_slow"))).json()["status"] == "duplicate"
        await until(lambda: len(scene.destination.taken) == 7, what="all deliveries")
        assert set(scene.destination.taken.values()) == {1}
        assert await scene.relay.stop() == 0


@pytest.mark.parametrize("table", ["attempts", "events"])
async def test_a_damaged_page_is_found_after_an_unclean_stop(
    tmp_path: Path, random: Random, table: str
) -> None:
    """Nobody but the check reads old attempts; old events are read by retention as well."""
    async with _scene(tmp_path, random) as scene:
        await _send(scene, 200)
        await until(lambda: len(scene.destination.taken) == 200, what="all deliveries")
        await scene.relay.kill()
        _damage(scene.relay.store, table=table)
        # It stays damaged, and stopping at the first finding must not hide it from the next start.
        for _ in range(2):
            await scene.relay.spawn()
            begun = len(scene.relay.lines("store.broken"))
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(_send_until_gone(scene))
                assert await scene.relay.exit() == os.EX_IOERR
                sending.cancel()
            line = scene.relay.lines("store.broken")[begun]
            assert "is damaged" in str(line["reason"])
            found_s = datetime.fromisoformat(str(line["timestamp"])).timestamp()
            assert max(scene.traffic.acknowledged_from_s) < found_s
        assert "Traceback" not in scene.relay.output(last=1 << 20)


async def test_a_file_that_is_cut_short_in_place_is_noticed_before_the_next_acknowledgement(
    tmp_path: Path, random: Random
) -> None:
    async with _scene(tmp_path, random) as scene:
        await _send(scene, 20)
        os.truncate(scene.relay.store, 0)
        sent = len(scene.traffic.statuses)
        await scene.traffic.attempt(LEAD_CAPTURED)
        assert await scene.relay.exit() == os.EX_IOERR
        assert set(scene.traffic.statuses[sent:]) <= {503, None}
        [line] = scene.relay.lines("store.broken")
        assert _names_the_damage(str(line["reason"]))


async def test_a_drain_that_finds_the_file_cut_short_does_not_end_well(
    tmp_path: Path, random: Random
) -> None:
    async with _scene(tmp_path, random) as scene:
        await _send(scene, 20)
        os.truncate(scene.relay.store, 0)
        assert await scene.relay.stop() == os.EX_IOERR
        assert _names_the_damage(scene.relay.output())
        assert "Traceback" not in scene.relay.output(last=1 << 20)


def _names_the_damage(text: str) -> bool:
    """Whether it was noticed by the file's length, or first by a query that read the file."""
    return "cut short" in text or "the store is damaged (SQLITE_CORRUPT)" in text


def _reasons(scene: Scene) -> set[object]:
    return {line["reason"] for line in scene.relay.lines("store.unavailable")}


async def _send(scene: Scene, count: int) -> None:
    for _ in range(count):
        await scene.traffic.attempt(LEAD_CAPTURED)


async def _send_until_gone(scene: Scene) -> None:
    while True:
        await scene.traffic.attempt(LEAD_CAPTURED)
        await asyncio.sleep(0.001)


def _damage(store: Path, *, table: str) -> None:
    """Wipe out the head of a table's first leaf, in a file that has taken up its log."""
    with closing(sqlite3.connect(store)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        found = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
        root: int = found.fetchone()[0]
    content = bytearray(store.read_bytes())
    # fileformat2.html, 1.6: an interior page's first cell begins with the number of its child.
    page = content[(root - 1) * PAGE : root * PAGE]
    assert page[0] == INTERIOR
    cell = int.from_bytes(page[12:14])
    leaf = int.from_bytes(page[cell : cell + 4])
    content[(leaf - 1) * PAGE : (leaf - 1) * PAGE + 8] = bytes(8)
    store.write_bytes(content)


async def _prove_all_is_there(scene: Scene) -> None:
    await scene.relay.start()
    await until(
        lambda: scene.traffic.acknowledged <= set(scene.destination.taken), what="all deliveries"
    )
    assert await scene.relay.stop() == 0
    end = ledger.read(scene.relay.store)
    assert end.integrity == "ok"
    assert scene.traffic.acknowledged <= end.events
