"""The relay on a socket that lives longer than it does: no request fails over restarts."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests import service
from tests.caller import Caller
from tests.deploy import activated
from tests.deploy.activated import ActivatedRelay
from tests.deploy.load import Load, under_load
from tests.guarantees import ledger
from tests.guarantees.destinations import HANGING, Destination
from tests.guarantees.process import until
from tests.guarantees.test_drain import _request
from tests.guarantees.traffic import lead, post

RESTARTS = 3
LISTENS = "0A"
"""TCP_LISTEN, as /proc/net/tcp writes it."""

SINK = service.SINK.format(name="crm", url="{url}", more='timeout = "30s"')


@pytest.mark.parametrize("way", ["on_one_connection", "on_many_connections"])
async def test_no_request_fails_over_restarts_under_load(tmp_path: Path, way: str) -> None:
    async with (
        Destination("crm") as destination,
        activated.relay(tmp_path, sinks=SINK.format(url=destination.url)) as relay,
    ):
        load = Load(relay.url)
        async with under_load(load, way):
            for number in range(RESTARTS):
                enough = 200 * (number + 1)
                await until(partial(load.has_acknowledged, enough), what="the load")
                await relay.restart()
        assert await relay.stop() == 0
        assert load.others == []
        stored = {event_id for _, event_id in ledger.read(relay.store).events}
        assert stored == load.acknowledged
        assert relay.lines("listener.cut_off") == []
    sys.stdout.write(
        f"{len(load.acknowledged)} requests over {RESTARTS} restarts, none failed, "
        f"the slowest took {load.slowest_s:.2f} s\n"
    )


async def test_connections_wait_in_the_queue_while_no_relay_runs(tmp_path: Path) -> None:
    async with activated.relay(tmp_path, sinks="") as relay:
        assert await relay.stop() == 0
        async with asyncio.TaskGroup() as callers:
            waiting = [
                callers.create_task(post(relay.url, lead(f"evt_{number}"))) for number in range(20)
            ]
            await until(lambda: _queued(relay.port) == 20, what="20 connections in the queue")
            await relay.start()
        assert [each.result().status_code for each in waiting] == [202] * 20


async def test_requests_are_accepted_while_a_drain_waits_for_sends(tmp_path: Path) -> None:
    """A hanging sink must not make the sender wait for the whole drain."""
    async with (
        Destination("crm", HANGING) as destination,
        activated.relay(
            tmp_path, sinks=SINK.format(url=destination.url), server='drain_timeout = "3s"'
        ) as relay,
    ):
        await post(relay.url, lead("evt_hangs"))
        await until(lambda: bool(destination.open()), what="the send")
        relay.signal(signal.SIGTERM)
        await until(_is_stopping(relay), what="the drain")
        assert (await post(relay.url, lead("evt_late"))).status_code == 202
        assert relay.running
        assert await relay.exit() == 0
        assert ("main", "evt_late") in ledger.read(relay.store).events


async def test_a_request_on_an_idle_connection_is_answered_after_the_signal(
    tmp_path: Path,
) -> None:
    async with activated.relay(tmp_path, sinks="") as relay:
        slow, used, unused = [await _connected(relay) for _ in range(3)]
        async with slow, used, unused:
            # While a request is under way, idle connections are not given up before their time.
            request = _request(lead("evt_slow"))
            slow.write(request[:-10])
            assert (await used.ask(_request(lead("evt_1")))).status == 202
            relay.signal(signal.SIGTERM)
            await until(_is_stopping(relay), what="the drain")
            for number, caller in enumerate((used, unused)):
                answer = await caller.ask(_request(lead(f"evt_late_{number}")))
                assert (answer.status, answer.headers["connection"]) == (202, "close")
                assert await caller.is_closed()
            assert (await slow.ask(request[-10:])).status == 202
        assert await relay.exit() == 0
        assert len(ledger.read(relay.store).events) == 4


async def test_idle_connections_do_not_delay_a_stop(tmp_path: Path) -> None:
    async with (
        activated.relay(tmp_path, sinks="", server='drain_timeout = "60s"') as relay,
        await _connected(relay) as used,
        await _connected(relay) as unused,
    ):
        assert (await used.ask(_request(lead("evt_1")))).status == 202
        assert await relay.stop() == 0
        assert await used.is_closed()
        assert await unused.is_closed()


async def test_both_sides_can_be_handed_over_and_the_log_says_so(tmp_path: Path) -> None:
    async with activated.relay(tmp_path, sinks="", names=("admin", "public")) as relay:
        assert (await post(relay.url, lead("evt_1"))).status_code == 202
        (ready,) = relay.lines("relay.ready")
        assert ready["listen"] == f"http://127.0.0.1:{relay.port}"
        assert ready["admin_listen"] == relay.admin_url
        told = {(line["key"], line["listen"]) for line in relay.lines("listener.handed_over")}
        assert told == {
            ("server.listen", f"http://127.0.0.1:{relay.port}"),
            ("server.admin_listen", relay.admin_url),
        }
        assert f":{relay.port}" not in relay.config.read_text()
        await relay.restart()
        assert (await post(relay.url, lead("evt_1"))).status_code == 200


async def test_an_unusable_socket_is_reported_in_one_line(tmp_path: Path) -> None:
    async with activated.relay(tmp_path, sinks="", names=("public", "web"), starts=False) as relay:
        await relay.spawn()
        assert await relay.exit() == os.EX_CONFIG
        (line,) = relay.output().splitlines()
        assert line.startswith("relay: cannot use the inherited sockets: ")
        assert line.endswith("(FileDescriptorName= in the socket unit), found 'public', 'web'")
        assert not relay.store.exists()


def _is_stopping(relay: ActivatedRelay) -> Callable[[], bool]:
    return lambda: bool(relay.lines("relay.draining"))


async def _connected(relay: ActivatedRelay) -> Caller:
    return Caller(*await asyncio.open_connection("127.0.0.1", relay.port))


def _queued(port: int) -> int:
    """Unaccepted connections on the port: the rx queue in /proc/net/tcp."""
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        if state == LISTENS and int(local.rpartition(":")[2], 16) == port:
            return int(queues.rpartition(":")[2], 16)
    return 0
