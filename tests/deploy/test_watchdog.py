"""The real relay under a watchdog."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.guarantees import faulty_disk
from tests.guarantees.process import Relay, until

EVERY_S = 0.1
SILENT_S = 1.0
"""Time of ten proofs of life."""


class Watchdog:
    """A service manager's socket that counts proofs of life."""

    def __init__(self, opened: socket.socket) -> None:
        self._opened = opened

    def proofs(self) -> int:
        """Number of proofs since the last call."""
        count = 0
        while True:
            try:
                count += self._opened.recv(4096).split(b"\n").count(b"WATCHDOG=1")
            except BlockingIOError:
                return count

    async def is_silent(self) -> bool:
        self.proofs()
        await asyncio.sleep(SILENT_S)
        return self.proofs() == 0


@asynccontextmanager
async def watched(
    folder: Path, *, store: str = 'min_free = "0B"', **environ: str
) -> AsyncIterator[tuple[Relay, Watchdog]]:
    address = folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(address))
        opened.settimeout(0)
        usec = str(int(2 * EVERY_S * 1_000_000))
        told = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": usec, **environ}
        async with Relay(folder, sinks="", store=store, environ=told) as relay:
            await relay.spawn()
            watchdog = Watchdog(opened)
            await until(lambda: watchdog.proofs() > 0, what="a proof of life")
            yield relay, watchdog


async def test_a_hanging_disk_stops_the_proofs_of_life_of_an_idle_relay(
    tmp_path: Path,
) -> None:
    fault = tmp_path / "fault"
    library = faulty_disk.build(tmp_path)
    async with watched(tmp_path, LD_PRELOAD=str(library), RELAY_FAULT=str(fault)) as (relay, dog):
        faulty_disk.let(fault, "sync-hangs")
        await until(dog.is_silent, what="silence")
        assert relay.running
        fault.unlink()
        await until(lambda: dog.proofs() > 0, what="a proof of life after the disk has come back")
        assert await relay.stop() == 0


async def test_a_full_disk_does_not_stop_the_proofs_of_life(tmp_path: Path) -> None:
    async with watched(tmp_path, store='min_free = "1024GiB"') as (relay, dog):
        await until(lambda: bool(relay.lines("store.unavailable")), what="the full disk")
        for _ in range(3):
            dog.proofs()
            await until(lambda: dog.proofs() > 0, what="a proof of life")
        assert await relay.stop() == 0


async def test_a_blocked_loop_stops_the_proofs_of_life(tmp_path: Path) -> None:
    async with watched(tmp_path) as (relay, dog):
        relay.signal(signal.SIGSTOP)
        await until(dog.is_silent, what="silence")
        relay.signal(signal.SIGCONT)
        await until(lambda: dog.proofs() > 0, what="a proof of life")
        assert await relay.stop() == 0
