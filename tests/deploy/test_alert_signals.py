"""Behaviour of the relay that the alert rules rely on."""

import asyncio
from pathlib import Path

import pytest

from relay import config
from relay.app import maintenance
from tests.app.reloading import party, sink
from tests.caller import PATIENCE_S
from tests.postgres.server import PostgresServer
from tests.service import Relay, read, serving
from tests.stub_server import Reply, StubServer, until

BEAT_S = 0.01


@pytest.fixture(autouse=True)
def _chores_are_done_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "HEARTBEAT_EVERY_S", BEAT_S)
    monkeypatch.setattr(maintenance, "GAUGES_EVERY_S", BEAT_S)
    monkeypatch.setattr(maintenance, "CLUSTER_EVERY_S", BEAT_S)


async def commits(relay: Relay) -> float:
    return (await relay.counts("relay_store_commit_seconds_count")).get((), 0)


async def commits_within(relay: Relay, beats: int) -> float:
    before = await commits(relay)
    await asyncio.sleep(beats * BEAT_S)
    return await commits(relay) - before


async def test_an_idle_relay_commits(tmp_path: Path) -> None:
    async with serving(read(tmp_path)) as relay, asyncio.timeout(PATIENCE_S):
        # More commits than a start makes.
        while await commits(relay) < 50:
            await asyncio.sleep(BEAT_S)


async def test_a_relay_without_room_stops_committing(tmp_path: Path) -> None:
    async with serving(read(tmp_path, min_free="1024GiB")) as relay, asyncio.timeout(PATIENCE_S):
        # The first retention run ends with a few empty transactions.
        while await commits_within(relay, beats=20):
            pass
        (free,) = (await relay.counts("relay_store_free_bytes")).values()
        (floor,) = (await relay.counts("relay_store_min_free_bytes")).values()
        assert free < floor


CONFIG = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"

[store]
type = "postgres"
dsn = "{dsn}"

[[source]]
name = "main"
path = "/webhooks"
secrets = ["a-secret-of-sixteen-bytes"]
"""


@pytest.mark.servers
async def test_a_relay_stops_committing_while_its_database_is_away(
    tmp_path: Path, server: PostgresServer
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(CONFIG.format(dsn=server.dsn), encoding="utf-8")
    async with serving(config.load(file)) as relay, asyncio.timeout(PATIENCE_S):
        await relay.until_counted("relay_members", "live")
        await asyncio.to_thread(server.kill)
        while await commits_within(relay, beats=20):
            pass
        # RelayDown stays silent about other relays by this figure.
        assert await relay.counts("relay_members") == {("live",): 1}
        await asyncio.to_thread(server.start)
        while not await commits_within(relay, beats=20):
            pass


async def test_a_removed_sink_has_a_backlog_but_no_state(
    tmp_path: Path, destination: StubServer
) -> None:
    async with party(tmp_path, sink("crm", destination.url())) as there:
        destination.reply = lambda _: Reply(404)
        await there.send("a", "b")
        await there.relay.until_counted("relay_sink_state", "crm", "parked")
        await there.reload()
        await until(
            lambda: bool(there.relay.lines("sink.not_configured")), what="the line of the backlog"
        )
        await there.relay.until_counted("relay_pending_deliveries", "crm", value=2)
        assert await there.relay.counts("relay_oldest_pending_timestamp_seconds")
        assert await there.relay.counts("relay_sink_state") == {}
