"""The `redis` sink at an address of a Sentinel, or of a node of a Redis Cluster."""

from pathlib import Path

import pytest

from relay.core.errors import Misconfigured
from relay.core.event import Event
from tests.brokers.redis_topologies import RedisCluster, RedisSentinel
from tests.sinks.redis.conftest import build

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("database", ["", "/1"])
async def test_a_sentinel_is_named_with_what_to_do(
    tmp_path: Path, lead: Event, database: str
) -> None:
    sentinel = RedisSentinel(tmp_path)
    sentinel.start()
    sink = build(url=sentinel.url + database)
    for trial in (sink.send(lead), sink.check()):
        with pytest.raises(
            Misconfigured, match=r"a Redis Sentinel.*put its address into `sentinel`"
        ):
            await trial
    await sink.close()
    sentinel.stop()


async def test_a_node_without_the_stream_is_named_with_what_to_do(
    tmp_path: Path, lead: Event
) -> None:
    cluster = RedisCluster(tmp_path)
    cluster.start()
    first, second = (build(url=node.url) for node in cluster.nodes)
    for trial in (second.send(lead), second.check()):
        with pytest.raises(Misconfigured, match=r"^MOVED: another node .* put that node's address"):
            await trial
    await first.check()
    await first.send(lead)
    assert len(cluster.nodes[0].read()) == 1
    for sink in (first, second):
        await sink.close()
    cluster.stop()
