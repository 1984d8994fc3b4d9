"""The history of one event as steps, each made of a record in the store."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from relay.core.delivery import STATUS_AFTER, Status
from relay.core.sink_status import SinkStatus, place
from relay.core.units import duration, number, relative
from relay.store.events import AttemptRecord, DeliveryRecord, EventRecord, Queued
from relay.store.replays import Replay
from relay.store.sink_states import StateSpan

_WORDS = {"delivered": "delivered", "retry": "try {} failed", "parked": "try {} failed"}
_ICONS = {
    "delivered": ("ok", "ok"),
    "retry": ("retry", "warn"),
    "parked": ("parked", "bad"),
    "dead": ("bad", "bad"),
}
_UNQUEUED = Queued("", 0, is_more=False, of_key=0)


class TimelineLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the timeline; times are milliseconds since the epoch."""

    key: str
    """Unique in the timeline, and the same in the next view of it."""
    at_ms: int | None
    """None for a step to come at an unknown time."""
    icon: str
    tone: str
    text: str
    sink: str = ""
    detail: str = ""
    duration_ms: int | None = None
    answer: str = ""
    gap: str = ""
    """Text about the time before this step."""
    replay: int | None = None
    """Number of the replay that begins here."""
    to_come: bool = False

    @property
    def end_ms(self) -> int:
        return (self.at_ms or 0) + (self.duration_ms or 0)


class DeliveryTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of one event's deliveries."""

    event: EventRecord
    attempts: Sequence[AttemptRecord]
    now_ms: int
    statuses: Mapping[str, SinkStatus] = msgspec.field(default_factory=dict)
    replays: Sequence[Replay] = ()
    states: Mapping[str, Sequence[StateSpan]] = msgspec.field(default_factory=dict)
    give_up_ms: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Time that each configured sink retries an event."""
    queue: Mapping[str, Queued] = msgspec.field(default_factory=dict)
    """Places of the pending deliveries, by sink."""


def next_try(record: DeliveryTimeline, delivery: DeliveryRecord) -> tuple[int | None, str]:
    """Return when a pending delivery is tried next, if that is known, and what it waits for."""
    status = record.statuses.get(delivery.sink)
    if status is None:
        return None, "waits: the config has no such sink"
    if status.state == "paused":
        return None, "waits: the sink is paused"
    queued = record.queue.get(delivery.sink, _UNQUEUED)
    if delivery.due_ms is None:
        if queued.of_key > 1:
            return (
                None,
                f"waits for {number(queued.of_key)} earlier events of the same ordering key",
            )
        return None, "waits for an earlier event of the same ordering key"
    behind = place(queued.ahead, is_more=queued.is_more, flow=status.flow)
    if delivery.due_ms > record.now_ms:
        return delivery.due_ms, ""
    if status.state in ("active", "not configured"):
        return (None, f"waits {behind}") if behind else (delivery.due_ms, "")
    why = f"waits: the sink is {status.state}"
    if not behind:
        return status.next_try_ms or record.now_ms, why
    # The sink is tried then, with another event.
    next_ms = max(status.next_try_ms or 0, record.now_ms)
    return None, f"{why}, tried next {relative(next_ms, record.now_ms)}; {behind}"


def receipt(event: EventRecord) -> TimelineLine:
    sinks = [delivery.sink for delivery in event.deliveries]
    return TimelineLine(
        key="received",
        at_ms=event.received_ms,
        icon="in",
        tone="info",
        text="Reconstructed" if event.reconstructed else "Received",
        detail=_taken(event, sinks),
    )


def _taken(event: EventRecord, sinks: Sequence[str]) -> str:
    if not sinks:
        return "no sink took it"
    return f"{'stored' if event.reconstructed else 'verified and stored'}, for {listed(sinks)}"


def attempts(record: DeliveryTimeline, first: int, last: int) -> Iterator[TimelineLine]:
    tries: dict[str, int] = {}
    for index, attempt in enumerate(record.attempts[:last]):
        number = tries[attempt.sink] = tries.get(attempt.sink, 0) + 1
        if index >= first:
            yield _attempt(index, attempt, number)


def _attempt(index: int, attempt: AttemptRecord, number: int) -> TimelineLine:
    icon, tone = _ICONS.get(attempt.result, ("warn", "warn"))
    text = _WORDS.get(attempt.result, "became a dead letter").format(number)
    details = [attempt.reason]
    if attempt.status is not None and str(attempt.status) not in attempt.reason:
        details.insert(0, str(attempt.status))
    if attempt.result in ("delivered", "dead") and number > 1:
        details.insert(0, f"at try {number}")
    details.append(f"in {duration(attempt.duration_ms)}")
    if attempt.result == "parked":
        details.append("the sink was parked")
    if attempt.replay is not None:
        details.append(f"replay {attempt.replay}")
    return TimelineLine(
        key=f"attempt-{index}",
        at_ms=attempt.started_ms,
        icon=icon,
        tone=tone,
        text=text,
        sink=attempt.sink,
        detail=", ".join(detail for detail in details if detail),
        duration_ms=attempt.duration_ms,
        answer=attempt.answer,
    )


def replays(record: DeliveryTimeline) -> Iterator[TimelineLine]:
    for replay in record.replays:
        sinks = {each.sink for each in record.event.deliveries if each.replay == replay.id}
        sinks |= {each.sink for each in record.attempts if each.replay == replay.id}
        yield TimelineLine(
            key=f"replay-{replay.id}",
            at_ms=replay.created_ms,
            icon="retry",
            tone="info",
            text=f"Replay {replay.id}",
            detail=f"opened it again for {listed(sorted(sinks))}",
            replay=replay.id,
        )


def ends(record: DeliveryTimeline) -> Iterator[TimelineLine]:
    """Yield the ends of deliveries that no attempt explains, such as discards."""
    last = {attempt.sink: attempt for attempt in record.attempts}
    for delivery in record.event.deliveries:
        attempt = last.get(delivery.sink)
        explained = attempt is not None and _status_after(attempt) == delivery.status
        if delivery.status is not Status.PENDING and not explained:
            yield _end(delivery)


def _status_after(attempt: AttemptRecord) -> Status | None:
    return next((status for name, status in STATUS_AFTER.items() if name == attempt.result), None)


def _end(delivery: DeliveryRecord) -> TimelineLine:
    text, icon, tone = {
        Status.DEAD: ("became a dead letter", "bad", "bad"),
        Status.DISCARDED: ("discarded", "dash", "idle"),
    }.get(delivery.status, (str(delivery.status), "ok", "ok"))
    return TimelineLine(
        key=f"end-{delivery.sink}",
        at_ms=delivery.settled_ms,
        icon=icon,
        tone=tone,
        text=text,
        sink=delivery.sink,
        detail=(delivery.reason or "").removeprefix("discarded "),
    )


def pending(record: DeliveryTimeline) -> Iterator[TimelineLine]:
    tries: dict[str, int] = {}
    for attempt in record.attempts:
        tries[attempt.sink] = tries.get(attempt.sink, 0) + 1
    for delivery in record.event.deliveries:
        if delivery.status is Status.PENDING:
            at_ms, why = next_try(record, delivery)
            yield TimelineLine(
                key=f"next-{delivery.sink}",
                at_ms=at_ms,
                icon="clock",
                tone="info",
                text=f"try {tries.get(delivery.sink, 0) + 1}",
                sink=delivery.sink,
                detail=why or _give_up(record, delivery.sink),
                to_come=True,
            )


def _give_up(record: DeliveryTimeline, sink: str) -> str:
    limit_ms = record.give_up_ms.get(sink)
    return "" if limit_ms is None else f"tried until {duration(limit_ms)} after its first failure"


def listed(names: Sequence[str]) -> str:
    *most, last = names or [""]
    return f"{', '.join(most)} and {last}" if most else last
