"""One attempt at sending a batch: run under a time limit, then decided for each delivery.

An exception that a sink may not raise becomes a `Temporary`, and is logged as a bug.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from relay.core.config_values import Duration
from relay.core.delivery import Attempt, Delivery, Settlement, SinkResponse
from relay.core.errors import SinkError, Temporary
from relay.core.event import Event
from relay.core.retry import RefusalStreak, RetryPolicy, Standing, decide, standing
from relay.core.sink import BatchSink, Outcomes, Sink
from relay.core.timeouts import Deadlines, current_timeout
from relay.outbound.batching import is_cancelled
from relay.telemetry import log

Send = Callable[[Sequence[Event]], Awaitable[Outcomes]]
AttemptResult = tuple[SinkResponse, SinkError | None]


class FinishedAttempt(NamedTuple):
    """A delivery's attempt, its duration, and the decision that follows from it."""

    settlement: Settlement
    seconds: float
    error: SinkError | None = None
    standing: Standing = "untried"

    @property
    def asks_for_pause(self) -> bool:
        return isinstance(self.error, Temporary) and self.error.retry_after_ms is not None


def send_function(sink: Sink) -> Send:
    """Return a function that sends a batch, of one event if the sink takes no batches."""
    if isinstance(sink, BatchSink):
        return sink.send_batch

    async def send(events: Sequence[Event]) -> Outcomes:
        (event,) = events
        return (await sink.send(event),)

    return send


async def attempt(
    send: Send, name: str, events: Sequence[Event], *, limit: Duration, deadlines: Deadlines
) -> list[AttemptResult]:
    """Send once; an exception that a sink may not raise is its bug, not the events' fault.

    A sink that needs several requests has `limit` begin anew with each of them.
    """
    outcomes: Sequence[SinkResponse | BaseException]
    deadline = deadlines.within(limit.seconds)
    try:
        with deadline:
            current_timeout.set(deadline)
            outcomes = tuple(await send(events))
    except TimeoutError:
        outcomes = [Temporary(deadline.reason())] * len(events)
    except asyncio.CancelledError as error:
        # A client that cancels itself would end this task silently, and keep its leases.
        if is_cancelled():
            raise
        outcomes = [error] * len(events)
    except Exception as error:  # noqa: BLE001
        outcomes = [error] * len(events)
    if len(outcomes) != len(events):
        bug = RuntimeError(f"{len(outcomes)} outcomes for {len(events)} events")
        outcomes = [bug] * len(events)
    _log_bugs(name, events, outcomes)
    return [_result(outcome) for outcome in outcomes]


def judge_batch(
    batch: Sequence[Delivery],
    results: Sequence[AttemptResult],
    streak: RefusalStreak,
    *,
    is_current: bool,
    last_delivered_ms: int | None,
) -> list[AttemptResult]:
    """Blame a long series of refusals on the destination, and any other on its event.

    `is_current` is False for a batch that started before the sink failed: its successes do
    not open it again. `last_delivered_ms` is the sink's last success before the batch.
    """
    if any(error is None for _, error in results) and (is_current or streak.refusals is None):
        streak.end()
        return [*results]
    judged = []
    for delivery, (response, error) in zip(batch, results, strict=True):
        # A replay is an operator's choice, and a suspect was refused while others were taken.
        counts = delivery.replay is None and standing(delivery, last_delivered_ms) != "suspect"
        judged.append((response, streak.judge(error, event=delivery.seq, counts=counts)))
    return judged


def decide_batch(
    batch: Sequence[Delivery],
    results: Sequence[AttemptResult],
    policy: RetryPolicy,
    *,
    last_delivered_ms: int | None,
    probing: bool,
    started_ms: int,
    now_ms: int,
    seconds: float,
    random: Random,
) -> list[FinishedAttempt]:
    """Decide on each delivery of a batch; `last_delivered_ms` is its sink's last success.

    `seconds` is the duration of the attempt by the monotonic clock.
    """
    finished = []
    for delivery, (response, error) in zip(batch, results, strict=True):
        its_standing = standing(delivery, last_delivered_ms)
        decision = decide(
            delivery,
            error,
            policy,
            standing=its_standing,
            probing=probing,
            started_ms=started_ms,
            now_ms=now_ms,
            random=random,
        )
        record = Attempt(
            started_ms=started_ms,
            duration_ms=round(seconds * 1000),
            result=decision.result,
            status=response.status,
            reason=decision.reason,
            answer=response.excerpt,
        )
        settlement = Settlement(
            delivery=delivery, attempt=record, due_ms=decision.due_ms, counts=decision.counts
        )
        finished.append(FinishedAttempt(settlement, seconds, error, its_standing))
    return finished


def _result(outcome: SinkResponse | BaseException) -> AttemptResult:
    match outcome:
        case SinkResponse():
            return _storable(outcome.status, outcome.excerpt), None
        case SinkError():
            return _storable(outcome.status, outcome.answer), outcome
        case _:
            reason = f"a bug in the sink: {type(outcome).__name__}"
            return SinkResponse(), Temporary(reason, about_event=True)


def _storable(status: Any, excerpt: Any) -> SinkResponse:
    """Drop values of a wrong type, which a client library may pass through from its peer.

    The store would refuse them at every retry of the write; a status has 32 bits in PostgreSQL.
    """
    is_code = isinstance(status, int) and abs(status) < 1 << 31
    return SinkResponse(status if is_code else None, excerpt if isinstance(excerpt, str) else "")


def _log_bugs(
    name: str, events: Sequence[Event], outcomes: Sequence[SinkResponse | BaseException]
) -> None:
    """Write one line for all events that hit the same bug, with the first one's id."""
    ids_by_bug: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for event, outcome in zip(events, outcomes, strict=True):
        if not isinstance(outcome, SinkResponse | SinkError):
            ids_by_bug[tuple(log.describe(outcome).items())].append(event.id)
    for description, ids in ids_by_bug.items():
        log.get().error("sink.bug", sink=name, id=ids[0], count=len(ids), **dict(description))
