"""Metrics, log lines, stream and status of one sink's dispatcher."""

from collections import defaultdict
from collections.abc import Sequence

from relay.core.clock import Clock
from relay.core.delivery import Result, Settlement
from relay.core.errors import SinkError, StoreError
from relay.core.retry import Refusals
from relay.core.sink import SinkSettings
from relay.core.sink_status import SinkStatus, State, WaitReason
from relay.delivery.circuit_breaker import CircuitBreaker
from relay.telemetry import log
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics

REASONS_MAX = 3
"""Distinct reasons that one log line names."""


class ThroughputWindow:
    """Counts the last minute's deliveries with a resolution of one second, in constant memory."""

    WINDOW_S = 60

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        """Deliveries by second, the oldest first."""

    def add(self, count: int, now_s: float) -> None:
        second = int(now_s)
        self._counts[second] = self._counts.get(second, 0) + count
        if len(self._counts) > self.WINDOW_S:
            del self._counts[next(iter(self._counts))]

    def last_minute(self, now_s: float) -> int:
        start_s = int(now_s) - self.WINDOW_S
        return sum(count for second, count in self._counts.items() if second > start_s)


class DeliveryReporter:
    """Reports each fact of one sink's deliveries; nothing in it can fail a delivery."""

    def __init__(
        self, settings: SinkSettings, *, metrics: Metrics, clock: Clock, activity: ActivityStream
    ) -> None:
        self._name = settings.name
        self._type = settings.type
        self._metrics = metrics
        self._clock = clock
        self._activity = activity
        self._log = log.get().bind(sink=settings.name)
        self._sampled = log.Sampled(clock)
        self._last_error: tuple[str, int] | None = None
        self._delivered_ms: int | None = None
        self._throughput = ThroughputWindow()
        self._state: State = "active"
        self._since_ms = clock.now_ms()

    @property
    def last_delivered_ms(self) -> int | None:
        """Time of the last success; None if it is in the future, by a clock that was ahead."""
        delivered_ms = self._delivered_ms
        is_past = delivered_ms is not None and delivered_ms <= self._clock.now_ms()
        return delivered_ms if is_past else None

    def restore(self, state: State, *, since_ms: int) -> None:
        """Go on from the state in which the sink was left."""
        self._state, self._since_ms = state, since_ms

    def state(self, state: State, *, since_ms: int | None = None) -> None:
        """Publish the sink's state; `since_ms` if it did not start now."""
        if state != self._state:
            self._state = state
            self._since_ms = self._clock.now_ms() if since_ms is None else since_ms
        self._metrics.sink_state(self._name, state, since_ms=self._since_ms)
        self._activity.publish("state", sink=self._name, state=state)

    def state_changed(self, state: State, previous: State, *, reason: str) -> None:
        """Report a change of state that a send has caused."""
        self.state(state)
        if state == "active":
            self._log.info("sink.active", state=state, previous=previous)
        else:
            self._log.warning(f"sink.{state}", state=state, previous=previous, reason=reason)

    def sent(self, errors: Sequence[SinkError | None], *, now_s: float) -> None:
        """Record the outcomes of a batch; None is a success."""
        now_ms = self._clock.now_ms()
        for error in filter(None, errors):
            self._last_error = error.reason, now_ms
        delivered = errors.count(None)
        if delivered:
            self._delivered_ms = now_ms
            self._throughput.add(delivered, now_s)

    def damaged(self, count: int) -> None:
        """Count deliveries whose stored body is damaged."""
        self._metrics.damaged(self._name, count)

    def store_failed(self, error: StoreError) -> None:
        """Log that the store did not take or return deliveries."""
        self._sampled.line("store.unavailable", reason=str(error), sink=self._name)

    def attempted(self, settlement: Settlement, *, seconds: float) -> None:
        """Count an attempt whose outcome is on disk, and publish it to the stream."""
        delivery, attempt, lag_ms = settlement.delivery, settlement.attempt, _lag_ms(settlement)
        self._metrics.attempted(self._name, attempt.result, seconds)
        if attempt.result in ("delivered", "dead"):
            # The age of a replayed event is no delay.
            late_s = None if delivery.replay is not None else lag_ms / 1000
            self._metrics.settled(self._name, attempt.result, late_s)
        if self._activity.watched:
            self._activity.publish(
                attempt.result,
                at_ms=attempt.started_ms + attempt.duration_ms,
                sink=self._name,
                source=delivery.event.source,
                id=delivery.event.id,
                kind=delivery.event.kind,
                status=attempt.status,
                reason=attempt.reason,
                duration_ms=attempt.duration_ms,
                lag_ms=lag_ms,
                replay=delivery.replay,
            )
        else:
            self._activity.count(attempt.result)

    def log(self, settlements: Sequence[Settlement]) -> None:
        """Log a line for each finished delivery, and one for all that will be tried again."""
        failed: defaultdict[Result, list[Settlement]] = defaultdict(list)
        for settlement in settlements:
            if settlement.attempt.result in ("retry", "parked"):
                failed[settlement.attempt.result].append(settlement)
            else:
                self._log_one(settlement)
        for result, group in failed.items():
            if len(group) == 1:
                self._log_one(group[0])
            else:
                reasons = list(dict.fromkeys(each.attempt.reason for each in group))
                self._log.warning(f"delivery.{result}", count=len(group), reason=_joined(reasons))

    def _log_one(self, settlement: Settlement) -> None:
        delivery, attempt = settlement.delivery, settlement.attempt
        level = "info" if attempt.result == "delivered" else "warning"
        getattr(self._log, level)(
            f"delivery.{attempt.result}",
            source=delivery.event.source,
            id=delivery.event.id,
            kind=delivery.event.kind,
            attempt=delivery.tries + 1,
            status=attempt.status,
            reason=attempt.reason or None,
            duration_ms=attempt.duration_ms,
            lag_ms=_lag_ms(settlement),
        )

    def status(
        self,
        breaker: CircuitBreaker,
        *,
        in_flight: int,
        waits_for: WaitReason | None,
        refusals: Refusals | None,
    ) -> SinkStatus:
        self._correct_since()
        probe_at_s, now_s = breaker.probe_at_s, self._clock.monotonic()
        in_s = None if probe_at_s is None else max(0.0, probe_at_s - now_s)
        error, error_ms = self._last_error or (None, None)
        return SinkStatus(
            name=self._name,
            type=self._type,
            state=breaker.state,
            since_ms=self._since_ms,
            in_flight=in_flight,
            delivered_last_minute=self._throughput.last_minute(now_s),
            next_try_ms=None if in_s is None else self._clock.now_ms() + round(in_s * 1000),
            last_error=error,
            last_error_ms=error_ms,
            last_delivered_ms=self.last_delivered_ms,
            waits_for=waits_for,
            refusals=refusals,
        )

    def _correct_since(self) -> None:
        """Let a state begin now at the latest, as the stored one, once the clock was set back."""
        now_ms = self._clock.now_ms()
        if self._since_ms > now_ms:
            self._since_ms = now_ms
            self._metrics.sink_state(self._name, self._state, since_ms=now_ms)


def _lag_ms(settlement: Settlement) -> int:
    attempt = settlement.attempt
    return attempt.started_ms + attempt.duration_ms - settlement.delivery.event.received_ms


def _joined(reasons: Sequence[str]) -> str:
    more = len(reasons) - REASONS_MAX
    return "; ".join([*reasons[:REASONS_MAX], *([f"and {more} more"] if more > 0 else [])])
