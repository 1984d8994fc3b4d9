"""Whatever a sink raises, an attempt returns a response and a `SinkError` or none."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import Outcomes
from relay.core.timeouts import Deadlines
from relay.delivery.attempt import AttemptResult, attempt, send_function
from tests.delivery.dispatching import SendingSink
from tests.virtual_time import LoopClock

LIMIT = Duration.parse("10s")
SECRET = "jane.doe@example.com"


class Acting(SendingSink):
    """A sink whose `send` is a function of the test."""

    def __init__(self, act: Callable[[], Awaitable[SinkResponse]]) -> None:
        self._act = act

    async def send(self, event: Event) -> SinkResponse:
        del event
        return await self._act()


def raising(error: BaseException) -> Callable[[], Awaitable[SinkResponse]]:
    async def act() -> SinkResponse:
        raise error

    return act


async def attempt_one(act: Callable[[], Awaitable[SinkResponse]], lead: Event) -> AttemptResult:
    (result,) = await attempt(
        send_function(Acting(act)), "crm", [lead], limit=LIMIT, deadlines=Deadlines(LoopClock())
    )
    return result


async def test_a_response_is_returned_without_an_error(lead: Event) -> None:
    async def act() -> SinkResponse:
        return SinkResponse(202, "queued")

    assert await attempt_one(act, lead) == (SinkResponse(202, "queued"), None)


@pytest.mark.parametrize("status", ["503", 503.5, 1 << 31, {}, b"503"], ids=repr)
async def test_a_status_or_excerpt_of_a_wrong_type_is_dropped(lead: Event, status: Any) -> None:
    odd: Any = {"a": 1}

    async def act() -> SinkResponse:
        return SinkResponse(status, odd)

    assert await attempt_one(act, lead) == (SinkResponse(), None)
    error = Refused("the destination said no", status=status, answer="try later")
    assert await attempt_one(raising(error), lead) == (SinkResponse(None, "try later"), error)
    error = Refused("the destination said no", status=503, answer=odd)
    assert await attempt_one(raising(error), lead) == (SinkResponse(503), error)


@pytest.mark.parametrize("kind", [Temporary, Refused, Misconfigured])
async def test_a_sink_error_is_returned_with_its_response(
    lead: Event, lines: list[Any], kind: type[SinkError]
) -> None:
    error = kind("the destination said no", status=503, answer="try later")
    assert await attempt_one(raising(error), lead) == (SinkResponse(503, "try later"), error)
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
async def test_any_other_exception_is_logged_as_a_bug_without_its_text(
    lead: Event, lines: list[Any], error: BaseException
) -> None:
    response, temporary = await attempt_one(raising(error), lead)
    assert response == SinkResponse()
    assert isinstance(temporary, Temporary)
    assert temporary.reason == f"a bug in the sink: {type(error).__name__}"
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("sink.bug", "error")
    assert (line["sink"], line["id"]) == ("crm", lead.id)
    assert SECRET not in repr(line)


async def test_a_sink_that_does_not_answer_is_cancelled_at_its_timeout(lead: Event) -> None:
    async def act() -> SinkResponse:
        await asyncio.sleep(3600)
        return SinkResponse(200)

    began_s = asyncio.get_running_loop().time()
    response, error = await attempt_one(act, lead)
    assert (response, type(error)) == (SinkResponse(), Temporary)
    assert str(error) == "no answer within 10 s"
    assert 10 <= asyncio.get_running_loop().time() - began_s < 10.3


async def test_an_error_raised_on_cancellation_replaces_the_timeout(lead: Event) -> None:
    async def act() -> SinkResponse:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise Temporary("hung up") from None
        return SinkResponse(200)

    _, error = await attempt_one(act, lead)
    assert str(error) == "hung up"


async def test_cancelling_an_attempt_ends_it(lead: Event, lines: list[Any]) -> None:
    async def act() -> SinkResponse:
        await asyncio.sleep(5)
        return SinkResponse(200)

    task = asyncio.ensure_future(attempt_one(act, lead))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert lines == []


class BatchActing(Acting):
    """A batch sink that returns fixed outcomes."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        del events
        return self._outcomes


async def attempt_batch(outcomes: Outcomes, *events: Event) -> list[AttemptResult]:
    send, deadlines = send_function(BatchActing(outcomes)), Deadlines(LoopClock())
    return await attempt(send, "crm", events, limit=LIMIT, deadlines=deadlines)


async def test_each_event_of_a_batch_has_its_own_outcome(lead: Event, lines: list[Any]) -> None:
    response = SinkResponse(202, "queued")
    refusal = Refused("not this one", status=400, answer="no")
    results = await attempt_batch([response, refusal, KeyError(SECRET)], lead, lead, lead)
    assert results[:2] == [(response, None), (SinkResponse(400, "no"), refusal)]
    assert isinstance(results[2][1], Temporary)
    assert [line["event"] for line in lines] == ["sink.bug"]
    assert SECRET not in repr(lines)


async def test_an_exception_of_a_batch_sink_applies_to_the_whole_batch(lead: Event) -> None:
    parked = Misconfigured("no such queue")

    async def fail(_: Sequence[Event]) -> Outcomes:
        raise parked

    results = await attempt(fail, "crm", [lead] * 2, limit=LIMIT, deadlines=Deadlines(LoopClock()))
    assert results == [(SinkResponse(), parked)] * 2


async def test_a_wrong_number_of_outcomes_is_a_bug_of_the_sink(
    lead: Event, lines: list[Any]
) -> None:
    nothing: Any = None
    for outcomes in ([], [SinkResponse()] * 3, nothing):
        results = await attempt_batch(outcomes, lead, lead)
        assert [type(error) for _, error in results] == [Temporary] * 2
    assert [line["event"] for line in lines] == ["sink.bug"] * 3
    assert [line["count"] for line in lines] == [2, 2, 2]
