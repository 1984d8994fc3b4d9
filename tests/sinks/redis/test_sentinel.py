"""The `redis` sink behind Sentinels: real failovers, and no entry that was confirmed is lost."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core.clock import SystemClock
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.sinks.redis.sink import RedisSink
from tests.brokers.redis import RedisServer
from tests.brokers.redis_topologies import WatchedServers
from tests.ports import free_port
from tests.sinks.batch import told
from tests.sinks.conformance import built
from tests.stub_server import until

pytestmark = pytest.mark.servers


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[WatchedServers]:
    watched = WatchedServers(tmp_path)
    watched.start()
    yield watched
    watched.stop()


def build(watched: WatchedServers, **changed: Any) -> RedisSink:
    login = {"hosts": watched.hosts, "password": watched.SENTINEL_PASSWORD}
    table = {"url": watched.url, "sentinel": login, "timeout": "2s", **changed}
    sink: RedisSink = built("redis", SystemClock(), **table)
    return sink


def ids(server: RedisServer) -> list[str]:
    """List the ids of all entries in their order, each where it came first."""
    return list(dict.fromkeys(fields[b"id"].decode() for fields in server.read()))


async def deliver(sink: RedisSink, event: Event) -> list[str]:
    """Send until it is delivered, as the dispatcher does; return why it was not at first."""
    reasons: list[str] = []
    async with asyncio.timeout(60):
        while True:
            (outcome,) = await sink.send_batch((event,))
            if isinstance(outcome, SinkResponse):
                return reasons
            assert type(outcome) is Temporary
            reasons.append(outcome.reason)
            await asyncio.sleep(0.02)


def crash(watched: WatchedServers) -> None:
    watched.master().kill()


def hang(watched: WatchedServers) -> None:
    watched.master().freeze()


def hand_over(watched: WatchedServers) -> None:
    watched.fail_over()


@pytest.mark.parametrize("fail", [crash, hang, hand_over])
async def test_events_sent_during_a_failover_arrive_in_order_and_none_is_lost(
    watched: WatchedServers, lead: Event, fail: Callable[[WatchedServers], None]
) -> None:
    sink, old = build(watched), watched.master()
    sent: list[str] = []

    async def send_on() -> None:
        for number in count():
            event = replace(lead, id=f"evt_{number}")
            await deliver(sink, event)
            sent.append(event.id)
            if done.is_set():
                return

    done = asyncio.Event()
    sending = asyncio.create_task(send_on())
    await until(lambda: len(sent) > 50, what="events before the failover")
    await asyncio.to_thread(fail, watched)
    await until(lambda: watched.master() is not old, what="another master")
    if fail is hang:
        old.thaw()
    before = len(sent)
    await until(lambda: len(sent) > before + 50, what="events after the failover")
    done.set()
    await sending
    await sink.close()
    assert watched.master() is not old
    assert ids(watched.master()) == sent


async def test_a_master_that_was_demoted_is_left(watched: WatchedServers, lead: Event) -> None:
    sink, old = build(watched), watched.master()
    await sink.send(lead)
    new = next(server for server in watched.servers if server is not old)
    with closing(new.admin()) as admin:
        admin.replicaof("NO", "ONE")
    with closing(old.admin()) as admin:
        admin.replicaof("127.0.0.1", str(new.port))
    reasons = await deliver(sink, replace(lead, id="evt_next"))
    assert reasons[0] == "READONLY: the server is a read-only replica"
    await until(lambda: ids(watched.master()) == ["evt_lead", "evt_next"], what="both events")
    await sink.close()


async def test_an_entry_that_a_replica_lacks_is_not_delivered(
    watched: WatchedServers, lead: Event
) -> None:
    sink = build(watched)
    await sink.send(lead)
    replica = next(server for server in watched.servers if server is not watched.master())
    replica.freeze()
    # The Sentinels have not called it down yet.
    outcome = told(await sink.send_batch([lead]))
    assert outcome == [(Temporary, "fewer than 2 replicas have confirmed in time")]
    await deliver(sink, replace(lead, id="evt_next"))
    replica.thaw()
    await sink.close()


async def test_a_check_says_how_many_replicas_confirm(watched: WatchedServers) -> None:
    sink = build(watched)
    assert await sink.check() == "2 of its replicas have to confirm each entry"
    await sink.close()


async def failures(sink: RedisSink, event: Event) -> list[tuple[type[SinkError], str]]:
    """Send and check; return what both failed with."""
    found = []
    for trial in (sink.send(event), sink.check()):
        with pytest.raises(SinkError) as caught:
            await trial
        found.append((type(caught.value), caught.value.reason))
    await sink.close()
    return found


async def test_what_an_operator_has_to_mend_is_named(watched: WatchedServers, lead: Event) -> None:
    said: tuple[type[SinkError], str]
    wrong = {"hosts": watched.hosts, "password": "another"}
    said = (Misconfigured, "a Sentinel: WRONGPASS: wrong user or password")
    assert await failures(build(watched, sentinel=wrong), lead) == [said] * 2
    said = (Misconfigured, "a Sentinel: NOAUTH: the server asks for a password")
    assert await failures(build(watched, sentinel={"hosts": watched.hosts}), lead) == [said] * 2
    unknown = watched.url.replace(watched.MASTER, "main_1")
    said = (Misconfigured, "the Sentinels know no master of the name that is the host in url")
    assert await failures(build(watched, url=unknown), lead) == [said] * 2
    nobody = {"hosts": [f"127.0.0.1:{free_port()}"]}
    said = (Temporary, "no Sentinel answers, or none knows a master of this name that is up")
    assert await failures(build(watched, sentinel=nobody), lead) == [said] * 2
    for server in watched.servers:
        server.set_user(rights="+@all -wait")
    said = (Misconfigured, "NOPERM: the user may not WAIT for the replicas")
    assert await failures(build(watched), lead) == [said] * 2


async def test_one_sentinel_that_answers_is_enough(watched: WatchedServers, lead: Event) -> None:
    sink = build(watched)
    watched.sentinels[0].kill()
    watched.sentinels[1].freeze()
    await sink.send(lead)
    await sink.close()
    watched.sentinels[1].thaw()


async def test_without_any_sentinel_a_connection_goes_on(
    watched: WatchedServers, lead: Event
) -> None:
    sink = build(watched)
    await sink.send(lead)
    for sentinel in watched.sentinels:
        sentinel.kill()
    await sink.send(replace(lead, id="evt_next"))
    await sink.close()
