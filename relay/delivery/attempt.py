"""One try to send: under its time limit, with an error of ours whatever is raised, and judged."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import NamedTuple

from relay.core.clock import Clock
from relay.core.config_values import Duration
from relay.core.delivery import Attempt, Delivery, Settlement, SinkResponse
from relay.core.errors import SinkError, Temporary
from relay.core.event import Event
from relay.core.retry import RetryPolicy, Standing, decide, standing
from relay.core.sink import BatchSink, Outcomes, Sink
from relay.core.timeouts import Deadlines
from relay.outbound.batching import is_cancelled
from relay.telemetry import log

Send = Callable[[Sequence[Event]], Awaitable[Outcomes]]
AttemptResult = tuple[SinkResponse, SinkError | None]


class Moment(NamedTuple):
    """One moment on both of the clock's scales."""

    ms: int
    s: float

    @classmethod
    def of(cls, clock: Clock) -> "Moment":
        return cls(clock.now_ms(), clock.monotonic())


class Judged(NamedTuple):
    """A delivery's attempt and what follows from it."""

    settlement: Settlement
    error: SinkError | None
    standing: Standing

    @property
    def asks_for_pause(self) -> bool:
        return isinstance(self.error, Temporary) and self.error.retry_after_ms is not None


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
) -> list[AttemptResult]:
    """Send once; what the sink may not raise is a bug in it, and the events are not to blame."""
    outcomes: Sequence[SinkResponse | BaseException]
    try:
        with deadlines.within(limit.seconds):
            outcomes = await send(events)
    except TimeoutError:
        outcomes = [Temporary(f"no answer within {limit.seconds:g} s")] * len(events)
    except asyncio.CancelledError as error:
        # A client that cancels itself would end this task without a word, and keep its leases.
        if is_cancelled():
            raise
        outcomes = [error] * len(events)
    except Exception as error:  # noqa: BLE001
        outcomes = [error] * len(events)
    _log_bugs(name, events, outcomes)
    return [_tried(outcome) for outcome in outcomes]


def judged(
    batch: Sequence[Delivery],
    tried: Sequence[AttemptResult],
    policy: RetryPolicy,
    *,
    taken_ms: int | None,
    probing: bool,
    started: Moment,
    ended: Moment,
    random: Random,
) -> list[Judged]:
    """Decide what follows for each of a batch, whose sink last took an event at `taken_ms`."""
    duration_ms = round((ended.s - started.s) * 1000)
    found = []
    for delivery, (answer, error) in zip(batch, tried, strict=True):
        stands = standing(delivery, taken_ms)
        decision = decide(
            delivery,
            error,
            policy,
            standing=stands,
            probing=probing,
            started_ms=started.ms,
            now_ms=ended.ms,
            random=random,
        )
        made = Attempt(
            started_ms=started.ms,
            duration_ms=duration_ms,
            result=decision.result,
            status=answer.status,
            reason=decision.reason,
            answer=answer.excerpt,
        )
        settlement = Settlement(
            delivery=delivery, attempt=made, due_ms=decision.due_ms, counts=decision.counts
        )
        found.append(Judged(settlement, error, stands))
    return found


def _tried(outcome: SinkResponse | BaseException) -> AttemptResult:
    match outcome:
        case SinkResponse():
            return _storable(outcome), None
        case SinkError():
            return _storable(SinkResponse(outcome.status, outcome.answer)), outcome
        case _:
            reason = f"a bug in the sink: {type(outcome).__name__}"
            return SinkResponse(), Temporary(reason, about_event=True)


def _storable(answer: SinkResponse) -> SinkResponse:
    """Leave out what is of another type than it should be.

    Where a client hands on what a far end wrote, no type is sure, and what the store can never take
    would be written again for ever.
    """
    if _is_code(answer.status) and _is_text(answer.excerpt):
        return answer
    return SinkResponse(
        answer.status if _is_code(answer.status) else None,
        answer.excerpt if _is_text(answer.excerpt) else "",
    )


def _is_code(status: object) -> bool:
    return status is None or (isinstance(status, int) and abs(status) < 1 << 63)


def _is_text(excerpt: object) -> bool:
    return isinstance(excerpt, str)


def _log_bugs(
    name: str, events: Sequence[Event], outcomes: Sequence[SinkResponse | BaseException]
) -> None:
    """Write one line for all events that met the same bug, with the first one's id."""
    met: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for event, outcome in zip(events, outcomes, strict=True):
        if not isinstance(outcome, SinkResponse | SinkError):
            met[tuple(log.describe(outcome).items())].append(event.id)
    for described, ids in met.items():
        log.get().error("sink.bug", sink=name, id=ids[0], count=len(ids), **dict(described))
