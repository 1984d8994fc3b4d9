"""Metadata and records each have the sink's time limit, and the attempt around them ends later."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Refused, SinkError, Temporary
from relay.core.event import Event
from relay.core.timeouts import Deadlines
from relay.delivery.attempt import attempt
from relay.sinks.kafka import cluster
from relay.sinks.kafka.batch import KafkaRecord, Outcome
from relay.sinks.kafka.sink import Settings, build
from tests.conftest import ManualClock
from tests.virtual_time import LoopClock, VirtualLoop

LIMIT_S = 8.0
"""What the sink gives to each, of a timeout of 10 s."""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": VirtualLoop}


class SlowProducer:
    """Takes its time for metadata, once, and for each delivery."""

    metadata_s = 0.0
    records_s = 0.0
    outcome: Outcome = SinkResponse(excerpt="written")
    usable = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        del options
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._knows = False
        self._loop = loop

    async def find(self, topics: Collection[str], *, until_s: float) -> dict[str, SinkError]:
        del topics
        takes_s = 0.0 if self._knows else self.metadata_s
        if self._loop.time() + takes_s > until_s:
            await asyncio.sleep(until_s - self._loop.time())
            raise Temporary("the brokers do not answer in time")
        await asyncio.sleep(takes_s)
        self._knows = True
        return {}

    async def deliver(
        self, records: Mapping[int, KafkaRecord], *, until_s: float
    ) -> Mapping[int, Outcome]:
        left_s = until_s - self._loop.time()
        await asyncio.sleep(min(self.records_s, left_s))
        late = Temporary("not confirmed")
        return dict.fromkeys(records, self.outcome if self.records_s <= left_s else late)

    def abandon(self) -> None:
        self.closed.set_result(None)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[SlowProducer]:
    class Slow(SlowProducer):
        pass

    monkeypatch.setattr(cluster, "Producer", Slow)
    return Slow


async def attempted(clock: ManualClock, event: Event) -> tuple[Sequence[str], float]:
    """Attempt as a dispatcher does; return the reasons of failures, and the seconds it took."""
    settings = Settings(
        name="s", type="kafka", brokers="127.0.0.1:9092", timeout=Duration.parse("10s")
    )
    sink = build(settings, clock)
    begun_s = asyncio.get_running_loop().time()
    results = await attempt(
        sink.send_batch,
        "s",
        [event],
        limit=settings.send_timeout(),
        deadlines=Deadlines(LoopClock()),
    )
    await sink.close()
    reasons = ["" if error is None else str(error) for _, error in results]
    return reasons, round(asyncio.get_running_loop().time() - begun_s, 3)


async def test_slow_metadata_takes_nothing_from_the_time_of_records(
    clock: ManualClock, lead: Event, slow: type[SlowProducer]
) -> None:
    slow.metadata_s, slow.records_s = LIMIT_S - 1, LIMIT_S - 1
    assert await attempted(clock, lead) == ([""], 2 * LIMIT_S - 2)


@pytest.mark.parametrize(
    ("times_s", "result"),
    [
        ((LIMIT_S + 1, 0.0), (["the brokers do not answer in time"], LIMIT_S)),
        ((LIMIT_S - 1, LIMIT_S + 1), (["not confirmed"], 2 * LIMIT_S - 1)),
    ],
)
async def test_each_of_them_ends_by_its_own_limit(
    clock: ManualClock,
    lead: Event,
    slow: type[SlowProducer],
    times_s: tuple[float, float],
    result: tuple[list[str], float],
) -> None:
    slow.metadata_s, slow.records_s = times_s
    assert await attempted(clock, lead) == result


async def test_a_doubtful_record_has_the_time_again_as_it_is_sent_alone(
    clock: ManualClock, lead: Event, slow: type[SlowProducer]
) -> None:
    slow.metadata_s = slow.records_s = LIMIT_S - 1
    slow.outcome = Refused("larger than the topic takes")
    assert await attempted(clock, lead) == (["larger than the topic takes"], 4 * LIMIT_S - 4)
