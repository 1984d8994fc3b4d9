"""When events of a burst are sent: by the second, in a time that is handed out."""

import asyncio
from collections.abc import Sequence

import pytest

from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Refused, Temporary
from relay.core.event import Event
from relay.sinks.slack.burst import Burst, DigestSettings
from tests.sinks.slack.test_digest import watched
from tests.virtual_time import VirtualLoop


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": VirtualLoop}


class Channel:
    """Notes when which events came in one message, and fails as it is told."""

    def __init__(self, *, over: int = 5, every: str = "1m") -> None:
        self.messages: list[tuple[float, int]] = []
        self.refuses_digests = False
        self.error: Exception | None = None
        settings = DigestSettings(over=over, every=Duration.parse(every))
        self.burst = Burst(settings, single=self._single, digest=self._digest, interval_s=1.0)

    async def _single(self, _: Event) -> SinkResponse:
        return self._note(1)

    async def _digest(self, events: Sequence[Event]) -> SinkResponse:
        if self.refuses_digests:
            raise Refused("too long")
        return self._note(len(events))

    def _note(self, count: int) -> SinkResponse:
        if self.error is not None:
            raise self.error
        self.messages.append((round(asyncio.get_running_loop().time(), 3), count))
        return SinkResponse(200, "ok")

    def send(self, count: int) -> "list[asyncio.Task[SinkResponse]]":
        event = watched("a", "started")
        return [asyncio.create_task(self.burst.send(event)) for _ in range(count)]


async def test_few_events_are_sent_singly_at_the_sinks_pace() -> None:
    channel = Channel()
    await asyncio.gather(*channel.send(5))
    assert channel.messages == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]


async def test_many_events_are_one_message_that_delivers_all_of_them() -> None:
    channel = Channel()
    answers = await asyncio.gather(*channel.send(100))
    assert channel.messages == [(0, 100)]
    assert {answer.status for answer in answers} == {200}


async def test_after_a_digest_nothing_is_sent_until_its_time_is_over() -> None:
    channel = Channel()
    await asyncio.gather(*channel.send(10))
    await asyncio.sleep(5)
    later = channel.send(1)
    await asyncio.sleep(5)
    later += channel.send(40)
    await asyncio.gather(*later)
    assert channel.messages == [(0, 10), (60, 41)]


async def test_after_a_digest_few_events_are_sent_singly_again() -> None:
    channel = Channel()
    await asyncio.gather(*channel.send(10))
    await asyncio.gather(*channel.send(2))
    assert channel.messages == [(0, 10), (60, 1), (61, 1)]


async def test_a_failure_is_the_outcome_of_every_event_of_the_message() -> None:
    channel = Channel()
    channel.error = Temporary("the hook is used too fast")
    outcomes = await asyncio.gather(*channel.send(10), return_exceptions=True)
    assert {str(outcome) for outcome in outcomes} == {"the hook is used too fast"}


async def test_a_digest_that_is_refused_is_sent_event_by_event() -> None:
    channel = Channel()
    channel.refuses_digests = True
    await asyncio.gather(*channel.send(7))
    assert [count for _, count in channel.messages] == [1] * 7
    assert channel.messages[-1][0] == 7


async def test_a_cancelled_event_is_in_no_message() -> None:
    channel = Channel()
    await asyncio.gather(*channel.send(6))
    waiting = channel.send(8)
    await asyncio.sleep(1)
    for task in waiting[:2]:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert channel.messages == [(0, 6), (60, 6)]


async def test_closing_drops_waiting_events_and_may_be_repeated() -> None:
    channel = Channel()
    await asyncio.gather(*channel.send(6))
    (waiting,) = channel.send(1)
    await asyncio.sleep(1)
    waiting.cancel()
    await channel.burst.close()
    await channel.burst.close()
    assert channel.messages == [(0, 6)]
