"""Inspection of a running relay's store."""

import asyncio
from pathlib import Path

import pytest

from relay.store.integrity import Inspection, Inspections
from relay.store.sqlite import integrity
from relay.store.sqlite.driver import Connection
from relay.store.sqlite.store import SqliteStore
from tests import service
from tests.app.reloading import body
from tests.caller import post
from tests.operator import ADMIN, operating
from tests.stub_server import until


async def test_the_contents_are_reported_while_the_relay_runs(tmp_path: Path) -> None:
    async with (
        service.serving(service.read(tmp_path, tables=ADMIN)) as relay,
        operating(relay) as operator,
    ):
        assert (await relay.ask(post(body("a")))).status == 202
        report = await operator.get("/store/check")
        assert report["faults"] == []
        assert report["content"]["events"] == 1
        assert report["content"]["deliveries"] == dict.fromkeys(
            ("pending", "delivered", "dead", "discarded"), 0
        )
        assert report["size_bytes"] > 0


async def test_damage_is_a_result_not_an_error(tmp_path: Path) -> None:
    async with (
        service.serving(service.read(tmp_path, tables=ADMIN)) as relay,
        operating(relay) as operator,
    ):
        # Not the store's own file: the relay would notice, and end.
        other = tmp_path / "other.db"
        other.write_bytes(b"This is a text about bees." * 400)
        store = relay.service._store
        assert isinstance(store, SqliteStore)
        store.inspections = Inspections(lambda: integrity.inspect(other))
        report = await operator.get("/store/check")
    assert report["content"] is None
    assert len(report["faults"]) == 1


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Inspections wait for it, and are counted in `begun`."""
    released, real = asyncio.Event(), integrity.inspect

    async def slowly(path: Path) -> Inspection:
        begun.append(path)
        await released.wait()
        return await real(path)

    begun.clear()
    monkeypatch.setattr(integrity, "inspect", slowly)
    return released


begun: list[Path] = []


async def test_concurrent_requests_share_one_inspection(
    tmp_path: Path, released: asyncio.Event
) -> None:
    asked = Inspections(lambda: integrity.inspect(tmp_path / "relay.db"))
    first = [asyncio.create_task(asked.inspect()) for _ in range(3)]
    await until(lambda: len(begun) == 1, what="the reading")
    first[0].cancel()
    released.set()
    results = await asyncio.gather(*first, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1] is results[2]
    await asked.inspect()
    assert len(begun) == 2


@pytest.mark.servers
async def test_a_stopping_relay_ends_an_inspection_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    reading = asyncio.Event()
    run = Connection.run

    async def running(self: Connection, work: object) -> object:
        if work is integrity._content:
            reading.set()
            return await run(self, lambda db: db.execute(endless).fetchone())
        return await run(self, work)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "run", running)
    async with asyncio.timeout(20):
        async with (
            service.serving(service.read(tmp_path, tables=ADMIN)) as relay,
            operating(relay) as operator,
        ):
            asking = asyncio.create_task(operator.client.get("/api/v1/store/check"))
            async with asyncio.timeout(10):
                await reading.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
