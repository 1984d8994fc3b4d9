"""How the `nats` sink tells a stream that has lost its quorum from one that does not exist."""

import asyncio
import re
import time
from pathlib import Path

import pytest

from relay.core.errors import SinkError, Temporary
from relay.core.event import Event
from relay.sinks.nats.sink import NatsSink
from tests.brokers.nats_cluster import DEADLINE_S, NatsCluster
from tests.sinks.nats.conftest import build

NO_LEADER = "the stream RELAY has no leader: too few servers that hold it are up"
NO_QUORUM = "JetStream does not answer: too few servers of the cluster may be up for a quorum"
OF_JETSTREAM = "10008: JetStream is not available at the moment"


@pytest.mark.servers
@pytest.mark.parametrize("replicas", [1, 3])
async def test_without_a_quorum_events_wait_and_the_sink_is_not_parked(
    tmp_path: Path, lead: Event, replicas: int
) -> None:
    with NatsCluster(tmp_path) as cluster:
        leader = await cluster.put_stream(replicas=replicas)
        left = next(name for name in cluster.servers if name != leader)
        sink = build(servers=cluster.servers[left].url, timeout="5s")
        await sink.send(lead)
        await sink.check()
        if replicas == 1:  # the others still agree on what streams there are
            cluster.servers[leader].kill()
            expected = NO_LEADER
        else:
            cluster.kill_all_but(left)
            expected = f"{NO_QUORUM}|{OF_JETSTREAM}|{NO_LEADER}"
        await until_it_fails_by(sink, lead, expected)
        with pytest.raises(Temporary):
            await sink.check()
        await sink.close()


async def until_it_fails_by(sink: NatsSink, lead: Event, reasons: str) -> None:
    """Send until the servers know what they have lost; until then a send may simply be late."""
    end_s = time.monotonic() + DEADLINE_S
    while True:
        (found,) = await asyncio.gather(sink.send(lead), return_exceptions=True)
        if isinstance(found, SinkError):
            assert type(found) is Temporary, found.reason
            if re.fullmatch(reasons, found.reason):
                return
        assert time.monotonic() < end_s, "it names no quorum"
