"""One try to send: whatever a sink does, the dispatcher gets an answer and an error of ours."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
import structlog

from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import Outcomes, Sink
from relay.core.timeouts import Deadlines
from relay.delivery.attempt import AttemptResult, attempt, sending
from tests.virtual_time import LoopClock, VirtualLoop

LIMIT = Duration.parse("10s")
SECRET = "jane.doe@example.com"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


class Acting(Sink):
    """A sink that does what it is told."""

    def __init__(self, act: Callable[[], Awaitable[SinkResponse]]) -> None:
        self._act = act

    async def send(self, event: Event) -> SinkResponse:
        del event
        return await self._act()

    async def check(self) -> None:
        raise NotImplementedError

    def render(self, event: Event) -> dict[str, Any]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


def raising(error: BaseException) -> Callable[[], Awaitable[SinkResponse]]:
    async def act() -> SinkResponse:
        raise error

    return act


async def tried(act: Callable[[], Awaitable[SinkResponse]], lead: Event) -> AttemptResult:
    (ended,) = await attempt(
        sending(Acting(act)), "crm", [lead], limit=LIMIT, deadlines=Deadlines(LoopClock())
    )
    return ended


async def test_an_answer_is_handed_on_without_an_error(lead: Event) -> None:
    async def act() -> SinkResponse:
        return SinkResponse(202, "queued")

    assert await tried(act, lead) == (SinkResponse(202, "queued"), None)


@pytest.mark.parametrize("status", ["503", 503.5, 1 << 63, {}, b"503"], ids=repr)
async def test_a_status_or_an_excerpt_that_is_none_is_left_out(lead: Event, status: Any) -> None:
    odd: Any = {"a": 1}

    async def act() -> SinkResponse:
        return SinkResponse(status, odd)

    assert await tried(act, lead) == (SinkResponse(), None)
    error = Refused("the far end said no", status=status, answer="try later")
    assert await tried(raising(error), lead) == (SinkResponse(None, "try later"), error)
    error = Refused("the far end said no", status=503, answer=odd)
    assert await tried(raising(error), lead) == (SinkResponse(503), error)


@pytest.mark.parametrize("kind", [Temporary, Refused, Misconfigured])
async def test_what_a_sink_may_raise_is_handed_on_with_the_answer_in_it(
    lead: Event, lines: list[Any], kind: type[SinkError]
) -> None:
    error = kind("the far end said no", status=503, answer="try later")
    assert await tried(raising(error), lead) == (SinkResponse(503, "try later"), error)
    assert lines == []


@pytest.mark.parametrize(
    "error",
    [
        ValueError(SECRET),
        KeyError(SECRET),
        OSError(SECRET),
        RecursionError(SECRET),
        MemoryError(SECRET),
        ExceptionGroup(SECRET, [Temporary("one of several")]),
        asyncio.CancelledError(SECRET),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_sink_may_not_raise_is_a_bug_that_is_told_without_its_text(
    lead: Event, lines: list[Any], error: BaseException
) -> None:
    answer, made = await tried(raising(error), lead)
    assert answer == SinkResponse()
    assert isinstance(made, Temporary)
    assert made.reason == f"a bug in the sink: {type(error).__name__}"
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("sink.bug", "error")
    assert (line["sink"], line["id"]) == ("crm", lead.id)
    assert SECRET not in repr(line)


async def test_a_sink_that_does_not_answer_is_left_after_its_limit(lead: Event) -> None:
    async def act() -> SinkResponse:
        await asyncio.sleep(3600)
        return SinkResponse(200)

    began_s = asyncio.get_running_loop().time()
    answer, error = await tried(act, lead)
    assert (answer, type(error)) == (SinkResponse(), Temporary)
    assert str(error) == "no answer within 10 s"
    assert 10 <= asyncio.get_running_loop().time() - began_s < 10.3


async def test_a_sink_that_cleans_up_when_it_is_left_says_its_own_word(lead: Event) -> None:
    async def act() -> SinkResponse:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise Temporary("hung up") from None
        return SinkResponse(200)

    _, error = await tried(act, lead)
    assert str(error) == "hung up"


async def test_whoever_cancels_the_try_ends_it(lead: Event, lines: list[Any]) -> None:
    async def act() -> SinkResponse:
        await asyncio.sleep(5)
        return SinkResponse(200)

    task = asyncio.ensure_future(tried(act, lead))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert lines == []


class Together(Acting):
    """A sink that takes batches, and says of all events what it was told."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        del events
        return self._outcomes


async def tried_together(outcomes: Outcomes, *events: Event) -> list[AttemptResult]:
    send, deadlines = sending(Together(outcomes)), Deadlines(LoopClock())
    return await attempt(send, "crm", events, limit=LIMIT, deadlines=deadlines)


async def test_of_a_batch_each_event_has_its_own_end(lead: Event, lines: list[Any]) -> None:
    answer, refusal = SinkResponse(202, "queued"), Refused("not this one", status=400, answer="no")
    ends = await tried_together([answer, refusal, KeyError(SECRET)], lead, lead, lead)
    assert ends[:2] == [(answer, None), (SinkResponse(400, "no"), refusal)]
    assert isinstance(ends[2][1], Temporary)
    assert [line["event"] for line in lines] == ["sink.bug"]
    assert SECRET not in repr(lines)


async def test_what_a_batch_sink_raises_holds_for_all_of_the_batch(lead: Event) -> None:
    parked = Misconfigured("no such queue")

    async def fail(_: Sequence[Event]) -> Outcomes:
        raise parked

    ends = await attempt(fail, "crm", [lead] * 2, limit=LIMIT, deadlines=Deadlines(LoopClock()))
    assert ends == [(SinkResponse(), parked)] * 2


async def test_a_batch_without_an_outcome_for_each_is_a_bug_of_the_sink(
    lead: Event, lines: list[Any]
) -> None:
    for outcomes in ([], [SinkResponse()] * 3):
        ends = await tried_together(outcomes, lead, lead)
        assert [type(error) for _, error in ends] == [Temporary] * 2
    assert [line["event"] for line in lines] == ["sink.bug"] * 2
    assert [line["count"] for line in lines] == [2, 2]
