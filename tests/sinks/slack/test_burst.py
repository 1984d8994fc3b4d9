"""When events of a burst are sent: by the second, in a time that is handed out."""

import asyncio
from collections.abc import Sequence

import pytest

from relay.core.config_values import Duration, Secret
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import Event
from relay.core.timeouts import Deadlines, RequestTimeout
from relay.delivery.attempt import attempt
from relay.sinks.slack.burst import Burst, DigestSettings
from relay.sinks.slack.sink import Settings
from tests.sinks.slack.test_digest import lead, watched
from tests.virtual_time import LoopClock, VirtualLoop


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": VirtualLoop}


class Channel:
    """Notes when which events came in one message, and fails as it is told."""

    def __init__(self, *, over: int = 5, every: str = "1m", lasts_s: float = 0.0) -> None:
        self.messages: list[tuple[float, int]] = []
        self.tries = 0
        self._lasts_s = lasts_s
        self.refuses_digests = False
        self.error: Exception | None = None
        settings = DigestSettings(over=over, every=Duration.parse(every))
        self.burst = Burst(settings, single=self._single, digest=self._digest, interval_s=1.0)

    async def _single(self, _: Event) -> SinkResponse:
        return await self._post(1)

    async def _digest(self, events: Sequence[Event]) -> SinkResponse:
        if self.refuses_digests:
            raise Refused("too long")
        return await self._post(len(events))

    async def _post(self, count: int) -> SinkResponse:
        async with RequestTimeout(3):
            await asyncio.sleep(self._lasts_s)
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.messages.append((round(asyncio.get_running_loop().time(), 3), count))
        return SinkResponse(200, "ok")

    async def send_batch(self, events: Sequence[Event]) -> Sequence[SinkResponse]:
        return [await self.burst.send(event) for event in events]

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


@pytest.mark.parametrize("refuses", [False, True])
async def test_however_many_messages_a_burst_needs_all_its_events_have_their_time(
    *, refuses: bool
) -> None:
    channel = Channel(every="3s", lasts_s=2.9)
    channel.refuses_digests = refuses
    settings = Settings(
        name="s",
        type="slack",
        url=Secret("https://hooks.slack.example/x"),
        timeout=Duration.parse("3s"),
        digest=DigestSettings(every=Duration.parse("3s")),
    )
    deadlines, events = Deadlines(LoopClock()), [lead(f"n{number}") for number in range(200)]
    results = await asyncio.gather(
        *(
            attempt(
                channel.send_batch,
                "s",
                [event],
                limit=settings.send_timeout(),
                deadlines=deadlines,
            )
            for event in events
        )
    )
    assert {error for ((_, error),) in results} == {None}
    assert sum(count for _, count in channel.messages) == len(events)


async def test_what_waits_behind_a_failure_is_not_posted() -> None:
    channel = Channel(every="3s", lasts_s=1)
    channel.error = Temporary("the hook is used too fast", retry_after_ms=60_000)
    sending = channel.send(6)
    await asyncio.sleep(0.5)
    sending += channel.send(40)
    outcomes = await asyncio.gather(*sending, return_exceptions=True)
    assert {str(outcome) for outcome in outcomes} == {"the hook is used too fast"}
    assert asyncio.get_running_loop().time() < 3
    assert channel.tries == 1


async def test_a_refused_digest_ends_at_a_failure_of_one_of_its_messages() -> None:
    channel = Channel()
    channel.refuses_digests = True
    channel.error = Misconfigured("the hook is disabled")
    outcomes = await asyncio.gather(*channel.send(7), return_exceptions=True)
    assert {str(outcome) for outcome in outcomes} == {"the hook is disabled"}
    assert channel.tries == 1


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
