"""How a producer of the `kafka` sink ends, and what it reports where its own code fails."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.core.delivery import SinkResponse
from relay.core.errors import Temporary
from relay.core.event import Event
from relay.sinks.kafka import producer as kafka_producer
from relay.sinks.kafka.batch import ProduceBatch
from relay.sinks.kafka.cluster import KafkaProducer
from relay.sinks.kafka.producer import Producer
from tests.conftest import ManualClock
from tests.sinks.kafka.harness import KafkaHarness, Sinks
from tests.stub_server import until

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


class StuckClient(confluent_kafka.Producer):
    """Closes once `released` is set."""

    released: threading.Event

    def close(self, *arguments: Any) -> Any:
        self.released.wait(20)
        return super().close(*arguments)


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setattr(confluent_kafka, "Producer", StuckClient)
    monkeypatch.setattr(StuckClient, "released", threading.Event(), raising=False)
    yield StuckClient.released
    StuckClient.released.set()


@pytest.fixture
async def loop_errors() -> list[dict[str, Any]]:
    """Collect what the event loop reports from callbacks."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    return errors


async def test_a_stuck_producer_keeps_no_other_from_being_closed(
    released: threading.Event, loop_errors: list[dict[str, Any]]
) -> None:
    cluster = KafkaProducer(NOBODY, limit_s=1)
    producers = [cluster._producer(batch_records) for batch_records in (1, 10, 100)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await cluster.close()
    assert not any(producer.usable for producer in producers)
    released.set()
    await cluster.close()
    await asyncio.sleep(0)
    assert all(producer.closed.done() for producer in producers)
    assert loop_errors == []


def test_a_producer_may_end_after_its_event_loop(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)

    async def abandon() -> None:
        Producer(NOBODY).abandon()

    before = set(threading.enumerate())
    asyncio.run(abandon())
    released.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert failures == []


async def test_no_request_for_metadata_takes_longer_than_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeouts: list[float] = []

    class NoMetadata(confluent_kafka.Producer):
        def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
            del topic
            timeouts.append(timeout)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    time = SimpleNamespace(monotonic=lambda: sum(timeouts), sleep=None)
    monkeypatch.setattr(confluent_kafka, "Producer", NoMetadata)
    monkeypatch.setattr(kafka_producer, "time", time)
    producer = Producer(NOBODY)
    with pytest.raises(Temporary):
        await producer.find({"relay"}, until_s=asyncio.get_running_loop().time() + 5)
    assert timeouts[:4] == [0.25, 0.5, 1, 1]
    assert max(timeouts) == 1
    assert sum(timeouts) == pytest.approx(5, abs=1)
    await producer.closed


async def test_two_threads_may_add_the_last_outcome_at_once(
    loop_errors: list[dict[str, Any]],
) -> None:
    barrier = threading.Barrier(2)

    class Rendezvous(dict[int, Any]):
        def __setitem__(self, key: int, value: Any) -> None:
            super().__setitem__(key, value)
            barrier.wait(20)

    batch = ProduceBatch(2)
    batch.outcomes = Rendezvous()
    other = threading.Thread(target=batch.add, args=(1, SinkResponse()))
    other.start()
    batch.add(0, SinkResponse())
    other.join()
    await batch.complete
    await asyncio.sleep(0)
    assert loop_errors == []


def failing(bug: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise bug

    return fail


async def test_a_bug_in_a_delivery_report_is_the_outcome_of_its_event(
    harness: KafkaHarness, clock: ManualClock, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = TypeError("ours")
    monkeypatch.setattr(kafka_producer, "SinkResponse", failing(bug))
    sink = Sinks(harness, clock)()
    assert await sink.send_batch([lead]) == [bug]
    await sink.close()


async def test_a_bug_in_the_clients_thread_is_reported_as_one(
    harness: KafkaHarness, clock: ManualClock, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sinks(harness, clock)()
    await sink.check()
    bug = TypeError("ours")
    monkeypatch.setattr(kafka_producer, "classify", failing(bug))
    harness.cluster.kill()
    producer = sink._cluster._producer(10_000)
    sending = asyncio.create_task(sink.send_batch([lead]))
    await until(lambda: producer._bug is not None, what="the bug")
    assert await sending == [bug]
    await sink.close()
