"""What a service manager is told: read from a real datagram socket."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from relay.app.service import ProcessHooks, Service
from relay.app.watchdog import describe
from relay.config import Config
from relay.core.clock import SystemClock
from relay.core.errors import StoreFull
from relay.core.sink_status import SinkStatus
from relay.server.sd_notify import ServiceManager
from relay.store import Backlog
from relay.store.sqlite.group_commit import WAITING_MAX
from relay.store.sqlite.store import SqliteStore
from tests.app.test_service import document
from tests.conftest import NOW_MS, ManualClock

PID = 4711
PATIENCE_S = 10.0


class Ear:
    """A manager's socket: what came to it, in its order."""

    def __init__(self, opened: socket.socket) -> None:
        self._opened = opened
        self.heard: list[str] = []

    async def until(self, *expected: str) -> list[str]:
        """Wait for lines that begin like these, in this order; return those."""
        found: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < len(expected):
                line = await self._next()
                if line.startswith(expected[len(found)]):
                    found.append(line)
        return found

    async def _next(self) -> str:
        while not (waiting := self.lines()):
            await asyncio.sleep(0.005)
        first, *rest = waiting
        self.heard = rest
        return first

    def lines(self) -> list[str]:
        """All that has come and was not read."""
        while True:
            try:
                datagram = self._opened.recv(4096)
            except BlockingIOError:
                return self.heard
            self.heard += datagram.decode().split("\n")


@contextmanager
def ear(address: str) -> Iterator[Ear]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(address.replace("@", "\0"))
        opened.settimeout(0)
        yield Ear(opened)


def found(environ: dict[str, str]) -> ServiceManager:
    return ServiceManager.found(environ, pid=PID, clock=ManualClock())


def test_the_variables_are_gone_once_they_were_read(tmp_path: Path) -> None:
    environ = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(PID),
        "HOME": "/",
    }
    manager = found(environ)
    assert environ == {"HOME": "/"}
    assert manager
    assert manager.watchdog_s == 30


@pytest.mark.parametrize(
    "environ",
    [
        {"NOTIFY_SOCKET": "/x"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "often"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(PID)},
    ],
)
def test_no_proof_of_life_is_asked_for(environ: dict[str, str]) -> None:
    assert found(environ).watchdog_s is None


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}])
def test_without_a_socket_nothing_happens(environ: dict[str, str], lines: list[Any]) -> None:
    manager = found(environ)
    assert not manager
    tell_all(manager)
    assert lines == []


def tell_all(manager: ServiceManager) -> None:
    manager.ready()
    with manager.reloading():
        manager.status("reads its config again")
    manager.alive()
    manager.stopping()


ALL = [
    "READY=1",
    "RELOADING=1",
    f"MONOTONIC_USEC={NOW_MS * 1000}",
    "STATUS=reads its config again",
    "READY=1",
    "WATCHDOG=1",
    "STOPPING=1",
]


@pytest.mark.parametrize("abstract", [False, True])
def test_each_word_arrives(tmp_path: Path, abstract: bool) -> None:
    address = f"@relay-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with ear(address) as heard:
        tell_all(found({"NOTIFY_SOCKET": address}))
        assert heard.lines() == ALL


def test_readiness_is_reported_neither_too_early_nor_after_a_stop_signal(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with ear(address) as heard:
        manager = found({"NOTIFY_SOCKET": address})
        with manager.reloading():
            pass
        assert heard.lines() == []
        manager.ready()
        with manager.reloading():
            manager.stopping()
        assert heard.lines()[-1] == "STOPPING=1"


def test_the_same_status_is_reported_once(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with ear(address) as heard:
        manager = found({"NOTIFY_SOCKET": address})
        for line in ("well", "well", "ill", "well"):
            manager.status(line)
        assert heard.lines() == ["STATUS=well", "STATUS=ill", "STATUS=well"]


@pytest.mark.parametrize("address", ["gone", "x" * 200, "@nobody-listens-here"])
def test_an_unreachable_service_manager_stops_nothing(
    tmp_path: Path, address: str, lines: list[Any]
) -> None:
    tell_all(found({"NOTIFY_SOCKET": address if address[0] == "@" else str(tmp_path / address)}))
    assert {line["event"] for line in lines} == {"manager.unreachable"}


def test_a_service_manager_that_does_not_read_delays_nothing_and_gets_the_state_later(
    tmp_path: Path, lines: list[Any]
) -> None:
    address = str(tmp_path / "notify")
    with ear(address) as heard:
        manager = found({"NOTIFY_SOCKET": address})
        # More than any kernel's queue of datagrams holds.
        for _ in range(2000):
            manager.alive()
            if lines:
                break
        assert lines[0]["event"] == "manager.unreachable"
        started_s = time.thread_time()
        manager.status("starts")
        manager.ready()
        with manager.reloading():
            manager.status("reads its config again")
        assert time.thread_time() - started_s < 0.05
        heard.lines()
        heard.heard = []
        manager.status("reads its config again")
        assert heard.lines() == [
            "WATCHDOG=1",
            "RELOADING=1",
            f"MONOTONIC_USEC={NOW_MS * 1000}",
            "STATUS=reads its config again",
            "READY=1",
        ]


def sink_status(name: str, state: Any) -> SinkStatus:
    return SinkStatus(
        name=name,
        type="http",
        state=state,
        in_flight=0,
        delivered_last_minute=0,
        next_try_ms=None,
        last_error=None,
        last_error_ms=None,
        last_delivered_ms=None,
    )


@pytest.mark.parametrize(
    ("states", "backlogs", "problems", "line"),
    [
        ({}, {}, [], "0 of 0 sinks active; 0 pending"),
        (
            {"crm": "active", "sales": "active"},
            {"crm": Backlog(pending=2, oldest_ms=NOW_MS - 59_000)},
            [],
            "2 of 2 sinks active; 2 pending",
        ),
        (
            {"crm": "parked", "bi": "paused"},
            {
                "crm": Backlog(pending=40, dead=1, oldest_ms=NOW_MS - 185_000),
                "bi": Backlog(pending=2, dead=1, oldest_ms=NOW_MS - 1000),
            },
            [],
            "0 of 2 sinks active, crm parked, bi paused; 42 pending, the oldest for 3 min, 2 dead",
        ),
        (
            {"crm": "active"},
            {},
            ["the disk is full"],
            "takes no events: the disk is full; 1 of 1 sinks active; 0 pending",
        ),
        (
            {"crm": "active"},
            None,
            ["full"],
            "takes no events: full; 1 of 1 sinks active; backlog unknown: the store cannot be read",
        ),
    ],
)
def test_the_status_is_a_line(
    states: dict[str, str], backlogs: dict[str, Backlog] | None, problems: list[str], line: str
) -> None:
    statuses = [sink_status(name, state) for name, state in states.items()]
    assert describe(statuses, backlogs, problems, now_ms=NOW_MS) == line


def test_the_line_names_a_sink_that_stands_still() -> None:
    still = replace(sink_status("crm", "active"), stands_still_since_ms=NOW_MS - 61_000)
    line = describe([still, sink_status("bi", "active")], {}, [], now_ms=NOW_MS)
    assert line == "1 of 2 sinks active, crm stands still; 0 pending"


@asynccontextmanager
async def managed(loaded: Config, address: str, *, watchdog: str = "") -> AsyncIterator[Service]:
    """A service that tells whoever listens at the address; it is stopped at the end."""
    clock = SystemClock()
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": watchdog}
    manager = ServiceManager.found(environ, pid=os.getpid(), clock=clock)
    service = await Service.open(loaded, clock=clock, host=ProcessHooks(manager=manager))
    stop = asyncio.Event()
    run = asyncio.create_task(service.run(stop, ready=manager.ready))
    try:
        yield service
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await run


async def test_a_service_tells_how_it_is_doing_from_its_start_to_its_end(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with ear(address) as heard:
        async with managed(document(tmp_path), address) as service:
            await heard.until("READY=1")
            await service._reloader.reload()
            await heard.until("RELOADING=1", "MONOTONIC_USEC=", "READY=1")
        await heard.until("STOPPING=1")
        assert not {"READY=1", "WATCHDOG=1"} & set(heard.lines())


async def test_a_config_that_is_refused_leaves_it_ready(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with ear(address) as heard:
        async with managed(document(tmp_path), address) as service:
            await heard.until("READY=1")
            (tmp_path / "config.toml").write_text("[server]\nlisten = 7\n")
            await service._reloader._quietly(service._reloader.reload, via="SIGHUP")
            await heard.until("RELOADING=1", "READY=1")


async def test_the_sinks_are_in_the_status(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with ear(address) as heard:
        async with managed(document(tmp_path, crm="http://127.0.0.1:9/"), address):
            (line,) = await heard.until("STATUS=")
    assert line == "STATUS=1 of 1 sinks active; 0 pending"


async def test_proofs_of_life_come_at_half_of_the_time(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with ear(address) as heard:
        async with managed(document(tmp_path), address, watchdog="200000"):
            await heard.until("WATCHDOG=1")
            started_s = asyncio.get_running_loop().time()
            await heard.until(*["WATCHDOG=1"] * 5)
            assert asyncio.get_running_loop().time() - started_s >= 0.35


async def test_a_writer_that_is_stuck_gives_no_proof_of_life(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    goes_on = threading.Event()
    with ear(address) as heard:
        async with managed(document(tmp_path), address, watchdog="40000") as service:
            await heard.until("READY=1", "WATCHDOG=1")
            store = service._store
            assert isinstance(store, SqliteStore)
            writer = store._writer
            # As an fsync that does not come back: whatever is to be written waits behind it.
            stuck = asyncio.create_task(writer.run_exclusive(lambda _: goes_on.wait(PATIENCE_S)))
            await until_silent(heard)
            # Nor does a queue that is full count as an answer.
            waiting = [
                asyncio.create_task(service._store.probe(size=1024))
                for _ in range(WAITING_MAX + 100)
            ]
            await asyncio.sleep(0.5)
            assert "WATCHDOG=1" not in heard.lines()  # the first status may still come
            goes_on.set()
            await stuck
            await heard.until("WATCHDOG=1")
            await asyncio.gather(*waiting, return_exceptions=True)


async def until_silent(heard: Ear) -> None:
    """At most one proof was on its way."""
    async with asyncio.timeout(PATIENCE_S):
        while heard.lines():
            heard.heard = []
            await asyncio.sleep(0.2)


async def test_the_status_says_what_readiness_says_and_proofs_of_life_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise StoreFull("the disk is full (SQLITE_FULL)")

    monkeypatch.setattr(SqliteStore, "probe", full)
    monkeypatch.setattr("relay.app.watchdog.STATUS_EVERY_S", 0.01)
    address = str(tmp_path / "notify")
    with ear(address) as heard:
        async with managed(document(tmp_path), address, watchdog="40000"):
            await heard.until("STATUS=takes no events: the store is short of", "WATCHDOG=1")
