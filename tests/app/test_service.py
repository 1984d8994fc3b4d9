"""The service as a whole: started, stopped and failing in order."""

import asyncio
import socket
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Never

import httpx
import pytest

from relay import config
from relay.app.service import Service
from relay.core import sample_events, signature
from relay.core.clock import SystemClock
from relay.core.config_values import Address
from relay.core.errors import ListenFailed, StoreBroken, StoreLocked
from relay.core.event import LEAD_CAPTURED
from relay.delivery.dispatcher import Dispatcher
from relay.server.listener import bind
from relay.store.sqlite.store import SqliteStore
from tests.guarantees.process import http_client

SECRET = "a-secret-of-the-test-0123456789abcdef"


def document(folder: Path, **sinks: str) -> config.Config:
    tables = "".join(
        f'[[sink]]\nname = "{name}"\ntype = "http"\nurl = "{url}"\n' for name, url in sinks.items()
    )
    path = folder / "config.toml"
    path.write_text(
        f"""
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
drain_timeout = "1s"
[store]
path = "{folder / "relay.db"}"
min_free = "1B"
[[source]]
name = "main"
path = "/webhooks"
secrets = ["{SECRET}"]
{tables}"""
    )
    return config.load(path)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that refuses connections, and stays reserved meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}/hook"


def content(folder: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{folder / 'relay.db'}?mode=ro", uri=True)) as db:
        return db.execute(sql).fetchall()


@asynccontextmanager
async def running(loaded: config.Config) -> AsyncIterator[Service]:
    service = await Service.open(loaded, clock=SystemClock())
    stop, ready = asyncio.Event(), asyncio.Event()
    run = asyncio.create_task(service.run(stop, ready=ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({run, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        yield service
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await run


async def post(service: Service, event_id: str) -> httpx.Response:
    body = sample_events.event(LEAD_CAPTURED, event_id=event_id).body
    now_s = SystemClock().now_ms() // 1000
    header = signature.header(SECRET.encode(), now_s=now_s, body=body)
    async with http_client() as client:
        return await client.post(
            f"{service.public.url}/webhooks", content=body, headers={"Service-Signature": header}
        )


async def ask(service: Service, path: str) -> str:
    async with http_client() as client:
        return (await client.get(service.admin.url + path)).text


async def all_threads_gone(before: int) -> None:
    async with asyncio.timeout(5):
        while threading.active_count() > before:
            await asyncio.sleep(0.01)


async def test_a_service_starts_serves_and_stops_in_order(
    tmp_path: Path, nobody: str, lines: list[Any]
) -> None:
    threads = threading.active_count()
    async with running(document(tmp_path, crm=nobody)) as service:
        assert (await post(service, "evt_1")).status_code == 202
        assert (await post(service, "evt_1")).status_code == 200
    told = [line["event"] for line in lines if line["event"].startswith("relay.")]
    assert told == ["relay.ready", "relay.draining", "relay.stopped"]
    assert content(tmp_path, "SELECT id FROM events") == [("evt_1",)]
    assert content(tmp_path, "SELECT value FROM state WHERE name = 'clean'") == [(1,)]
    await all_threads_gone(threads)


async def test_the_gauges_are_set_from_the_start(tmp_path: Path, nobody: str) -> None:
    loaded = document(tmp_path, crm=nobody)
    async with running(loaded) as service:
        await post(service, "evt_1")
    async with running(loaded) as service:
        metrics = await ask(service, "/metrics")
    assert 'relay_pending_deliveries{sink="crm"} 1.0' in metrics
    assert "relay_store_bytes 0.0" not in metrics
    assert "relay_store_free_bytes 0.0" not in metrics
    assert "relay_store_min_free_bytes 1.0" in metrics


async def test_the_gauges_are_updated_without_requests(tmp_path: Path, nobody: str) -> None:
    async with running(document(tmp_path, crm=nobody)) as service:
        assert 'relay_pending_deliveries{sink="crm"} 0.0' in await ask(service, "/metrics")
        await post(service, "evt_1")
        async with asyncio.timeout(10):
            while 'relay_pending_deliveries{sink="crm"} 1.0' not in await ask(service, "/metrics"):
                await asyncio.sleep(0.05)


async def test_deliveries_of_a_removed_sink_are_reported_and_kept(
    tmp_path: Path, nobody: str, lines: list[Any]
) -> None:
    async with running(document(tmp_path, old=nobody, crm=nobody)) as service:
        await post(service, "evt_1")
    async with running(document(tmp_path, crm=nobody)):
        pass
    (line,) = [line for line in lines if line["event"] == "sink.not_configured"]
    assert (line["sink"], line["pending"]) == ("old", 1)
    assert content(tmp_path, "SELECT count(*) FROM deliveries WHERE sink = 'old'") == [(1,)]


@pytest.mark.parametrize("side", ["listen", "admin_listen"])
async def test_an_address_in_use_fails_the_start_and_leaves_nothing(
    tmp_path: Path, nobody: str, side: str
) -> None:
    threads = threading.active_count()
    loaded = document(tmp_path, crm=nobody)
    with bind(Address("127.0.0.1:0")) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        path = tmp_path / "config.toml"
        path.write_text(
            path.read_text().replace(f'\n{side} = "127.0.0.1:0"', f'\n{side} = "{address}"')
        )
        loaded = config.load(path)
        service = await Service.open(loaded, clock=SystemClock())
        with pytest.raises(ListenFailed, match=address):
            await service.run(asyncio.Event())
    await all_threads_gone(threads)
    async with running(document(tmp_path, crm=nobody)) as service:
        assert (await post(service, "evt_1")).status_code == 202


async def test_a_part_that_cannot_be_built_leaves_no_store_open(
    tmp_path: Path, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = threading.active_count()
    loaded = document(tmp_path, crm=nobody)
    with monkeypatch.context() as patch:
        patch.setattr(Dispatcher, "__init__", _fails)
        with pytest.raises(KeyError):
            await Service.open(loaded, clock=SystemClock())
    await all_threads_gone(threads)
    async with running(loaded):
        pass


async def test_a_second_service_on_the_store_is_refused(tmp_path: Path) -> None:
    loaded = document(tmp_path)
    async with running(loaded):
        with pytest.raises(StoreLocked):
            await Service.open(loaded, clock=SystemClock())


async def test_a_dispatcher_that_fails_ends_the_service_with_an_error(
    tmp_path: Path, nobody: str, monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    threads = threading.active_count()

    async def dies(_: Dispatcher) -> Never:
        await asyncio.sleep(0.05)
        raise KeyError("a bug of ours")

    monkeypatch.setattr(Dispatcher, "run", dies)
    service = await Service.open(document(tmp_path, crm=nobody), clock=SystemClock())
    async with asyncio.timeout(10):
        with pytest.raises(KeyError):
            await service.run(asyncio.Event())
    bug = next(line for line in lines if line["event"] == "relay.bug")
    assert (bug["log_level"], bug["error"]) == ("error", "KeyError")
    await all_threads_gone(threads)


async def test_a_disk_failure_in_a_dispatcher_is_reported_as_one(
    tmp_path: Path, nobody: str, monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    async def broken(*_: object, **__: object) -> Never:
        raise StoreBroken("the disk failed (SQLITE_IOERR_FSYNC)")

    monkeypatch.setattr(SqliteStore, "lease", broken)
    service = await Service.open(document(tmp_path, crm=nobody), clock=SystemClock())
    async with asyncio.timeout(10):
        with pytest.raises(StoreBroken, match="SQLITE_IOERR_FSYNC"):
            await service.run(asyncio.Event())
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["store.broken"]


async def test_a_damaged_store_ends_the_service_at_each_start_until_it_is_repaired(
    tmp_path: Path, nobody: str, lines: list[Any]
) -> None:
    loaded = document(tmp_path, crm=nobody)
    async with running(loaded) as service:
        await post(service, "evt_1")
    with closing(sqlite3.connect(tmp_path / "relay.db")) as db, db:
        db.execute("UPDATE state SET value = 0 WHERE name = 'clean'")
        db.execute("DELETE FROM events")
    for _ in range(2):
        service = await Service.open(loaded, clock=SystemClock())
        async with asyncio.timeout(10):
            with pytest.raises(StoreBroken, match="is damaged"):
                await service.run(asyncio.Event())
    assert "store.unclean" in {line["event"] for line in lines}


async def test_a_sink_that_cannot_be_closed_keeps_nothing_else_open(
    tmp_path: Path, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = threading.active_count()
    loaded = document(tmp_path, crm=nobody)
    service = await Service.open(loaded, clock=SystemClock())
    monkeypatch.setattr(service.supervisor._members["crm"].sink, "close", _fails)
    stop = asyncio.Event()
    stop.set()
    await service.run(stop)
    monkeypatch.undo()
    await service.supervisor._members["crm"].sink.close()
    await all_threads_gone(threads)
    async with running(loaded):
        pass


def _fails(*_: object, **__: object) -> Never:
    raise KeyError("a fault")


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.003, 0.01, 0.03])
async def test_a_start_that_is_cancelled_leaves_nothing(
    tmp_path: Path, nobody: str, delay_s: float
) -> None:
    threads = threading.active_count()
    loaded = document(tmp_path, crm=nobody)
    service = await Service.open(loaded, clock=SystemClock())
    starting = asyncio.create_task(service.run(asyncio.Event()))
    await asyncio.sleep(delay_s)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await service._close()
    await all_threads_gone(threads)
    async with running(loaded):
        pass
