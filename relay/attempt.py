"""One try to send: under its time limit, and with an error of ours whatever is raised."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from relay import log
from relay.batching import is_cancelled
from relay.deadline import Deadlines
from relay.delivery import Answer
from relay.errors import SinkError, Temporary
from relay.event import Event
from relay.settings import Duration
from relay.sink import BatchSink, Outcomes, Sink

Send = Callable[[Sequence[Event]], Awaitable[Outcomes]]
Tried = tuple[Answer, SinkError | None]


def sending(sink: Sink) -> Send:
    """How events are given to a sink: a batch at once, or one alone where it takes no batches."""
    return _together(sink) if isinstance(sink, BatchSink) else _alone(sink)


def _together(sink: BatchSink) -> Send:
    async def send(events: Sequence[Event]) -> Outcomes:
        outcomes = await sink.send_batch(events)
        if len(outcomes) != len(events):
            raise RuntimeError(f"{len(outcomes)} outcomes for {len(events)} events")
        return outcomes

    return send


def _alone(sink: Sink) -> Send:
    async def send(events: Sequence[Event]) -> Outcomes:
        (event,) = events
        return (await sink.send(event),)

    return send


async def attempt(
    send: Send, name: str, events: Sequence[Event], *, limit: Duration, deadlines: Deadlines
) -> list[Tried]:
    """Send once; what the sink may not raise is a bug in it, and the events are not to blame."""
    outcomes: Outcomes
    try:
        with deadlines.within(limit.seconds):
            outcomes = await send(events)
    except TimeoutError:
        outcomes = [Temporary(f"no answer within {limit.seconds:g} s")] * len(events)
    except asyncio.CancelledError as error:
        # A client that cancels itself would end this task without a word, and keep its leases.
        if is_cancelled():
            raise
        return [_bug(name, event, error) for event in events]
    except Exception as error:  # noqa: BLE001
        outcomes = [error] * len(events)
    return [_tried(name, *ended) for ended in zip(events, outcomes, strict=True)]


def _tried(name: str, event: Event, outcome: Answer | Exception) -> Tried:
    match outcome:
        case Answer():
            return _storable(outcome), None
        case SinkError():
            return _storable(Answer(outcome.status, outcome.answer)), outcome
        case _:
            return _bug(name, event, outcome)


def _storable(answer: Answer) -> Answer:
    """Leave out what is of another type than it should be.

    Where a client hands on what a far end wrote, no type is sure, and what the store can never take
    would be written again for ever.
    """
    if _is_code(answer.status) and _is_text(answer.excerpt):
        return answer
    return Answer(
        answer.status if _is_code(answer.status) else None,
        answer.excerpt if _is_text(answer.excerpt) else "",
    )


def _is_code(status: object) -> bool:
    return status is None or (isinstance(status, int) and abs(status) < 1 << 63)


def _is_text(excerpt: object) -> bool:
    return isinstance(excerpt, str)


def _bug(name: str, event: Event, error: BaseException) -> Tried:
    log.get().error("sink.bug", sink=name, id=event.id, **log.describe(error))
    return Answer(), Temporary(f"a bug in the sink: {type(error).__name__}")
