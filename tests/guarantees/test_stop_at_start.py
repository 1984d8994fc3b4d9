"""A stop during the start is not lost, whatever is being done, and leaves nothing half done."""

import asyncio
import os
import signal
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from relay.cli import serve
from relay.core.clock import SystemClock
from relay.server.sd_notify import ServiceManager
from relay.store.sqlite.driver import sqlite3
from tests.guarantees.process import Relay, until
from tests.namespaces import FIRST_PROCESS, first_process, needs_namespaces

pytestmark = pytest.mark.servers

SOON_S = 20.0
"""The relay itself takes 3 s at most; the rest is for a busy machine."""

_MIGRATES = """
import time
from pathlib import Path
from relay.store.sqlite import schema

def apply(db, step, now_ms):
    db.execute("BEGIN IMMEDIATE")
    db.execute("CREATE TABLE half_done (number)")
    Path("{mark}").touch()
    time.sleep(120)

schema._apply = apply
from relay.__main__ import main
main()
"""


@needs_namespaces
async def test_the_first_process_of_a_container_ends_while_it_imports(tmp_path: Path) -> None:
    # The program itself, without what tests load before it.
    program = ("sh", "-c", 'shift 2; exec "$0" -m relay "$@"')
    async with Relay(tmp_path, sinks="", prefix=[*FIRST_PROCESS, *program]) as relay:
        await relay.spawn()

        def imports() -> bool:
            # Of what a start loads, msgspec comes early.
            number = first_process(relay.pid)
            maps = "" if number is None else Path(f"/proc/{number}/maps").read_text()
            return "python" in maps and "msgspec" in maps

        await until(imports, what="the imports")
        number = first_process(relay.pid)
        assert number is not None
        os.kill(number, signal.SIGTERM)
        assert await relay.exit(deadline_s=SOON_S) == 0
        assert not relay.lines("relay.ready")
        assert not relay.store.exists()
        assert "Traceback" not in relay.output()


async def test_it_ends_while_it_waits_for_a_database(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(0)
        dsn = f"postgresql://relay@127.0.0.1:{silent.getsockname()[1]}/relay"
        store = f'type = "postgres"\ndsn = "{dsn}"'
        async with Relay(tmp_path, sinks="", store=store) as relay:
            await relay.spawn()
            async with asyncio.timeout(60):
                waiting, _ = await asyncio.get_running_loop().sock_accept(silent)
            with waiting:
                relay.signal(signal.SIGTERM)
                assert await relay.exit(deadline_s=SOON_S) == 0


async def test_it_ends_while_it_migrates_and_nothing_of_that_is_kept(tmp_path: Path) -> None:
    mark, program = tmp_path / "migrates", tmp_path / "program.py"
    program.write_text(_MIGRATES.format(mark=mark), encoding="utf-8")
    prefix = ["sh", "-c", f'shift 2; exec "$0" {program} "$@"']
    async with Relay(tmp_path, sinks="", prefix=prefix) as relay:
        await relay.spawn()
        await until(mark.exists, what="the migration")
        started_s = time.monotonic()
        relay.signal(signal.SIGTERM)
        assert await relay.exit(deadline_s=SOON_S) == 0
        assert time.monotonic() - started_s < SOON_S
        with closing(sqlite3.connect(relay.store)) as db:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        assert "half_done" not in tables


async def test_a_stop_right_before_it_is_ready_leaves_the_time_for_a_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exits: list[str] = []
    monkeypatch.setattr(serve, "_exit", lambda: exits.append("cut off"))
    monkeypatch.setattr(serve, "START_STOP_S", 0.2)
    start = serve._Start(ServiceManager(None, clock=SystemClock()), asyncio.Event())
    start.stop()
    start.end()
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            await asyncio.to_thread(thread.join, SOON_S)
    assert exits == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_as_it_opens_the_store_ends_it_with_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with Relay(tmp_path, sinks="") as relay:
        await relay.spawn()
        await until(lambda: relay.store.exists() or not relay.running, what="the store")
        relay.signal(number)
        assert await relay.exit(deadline_s=SOON_S) == 0
        await relay.start()
        assert not relay.lines("store.unclean")
        assert await relay.stop() == 0
