"""All metrics of the relay; no id, address or title is ever a label.

Values are kept in memory, so a scrape touches neither store nor sinks.
"""

from collections.abc import Sequence
from typing import get_args

from relay.core.delivery import Result
from relay.core.event import LEAD_CAPTURED, MILESTONES, Outcome
from relay.core.totals import Total
from relay.telemetry.metrics import labels
from relay.telemetry.metrics.flow import FlowMetrics
from relay.telemetry.metrics.registry import OPEN, Registry
from relay.telemetry.metrics.relay import ClusterMetrics, OutageMetrics, ProcessMetrics
from relay.telemetry.metrics.store import StoreMetrics

UNKNOWN = "unknown"
"""The source label of requests that match no source's path."""


class Metrics:
    """Updates the relay's metrics; cheap, and no method fails for an unknown name.

    Durations are in seconds, moments in milliseconds since the epoch.
    """

    def __init__(
        self,
        sources: Sequence[str],
        sinks: Sequence[str],
        *,
        revision: str = "",
    ) -> None:
        self._registry = Registry()
        self.process = ProcessMetrics(self._registry, revision=revision)
        self.store = StoreMetrics(self._registry)
        self.cluster = ClusterMetrics(self._registry)
        self.outages = OutageMetrics(self._registry)
        self.flows = FlowMetrics(self._registry)
        self._define()
        self._define_for_sources()
        self._define_for_sinks()
        self._requests.create(source=UNKNOWN)
        for code in labels.NOT_HTTP:
            self._requests.create(source=UNKNOWN, code=code)
        self._rejected.create(source=UNKNOWN)
        for source in sources:
            self.add_source(source)
        for sink in sinks:
            self.add_sink(sink)

    def _define(self) -> None:
        self._limited = self._registry.counter(
            "relay_connections_limited_total",
            "Connections closed, refused or delayed because of a limit.",
            {"listener": labels.LISTENERS, "reason": labels.LIMITS},
        )
        self._enriched = self._registry.counter(
            "relay_enrichments_total",
            "Leads for sinks with enrich, by what came of asking what the person has watched.",
            {"result": labels.ENRICHED},
        )

    def _define_for_sources(self) -> None:
        self._requests = self._registry.counter(
            "relay_requests_total",
            "Requests to the public listener by response; unknown: no source's path, or not HTTP.",
            {"source": OPEN, "code": labels.CODES},
        )
        self._rejected = self._registry.counter(
            "relay_rejected_total",
            "Refused requests to the public listener.",
            {"source": OPEN, "reason": labels.REASONS},
        )
        self._mismatch_retries = self._registry.counter(
            "relay_mismatch_retries_total",
            "Requests that match no secret and repeat an earlier one at the sender's retry times.",
            {"source": OPEN},
        )
        self._acks = self._registry.histogram(
            "relay_ack_seconds",
            "Time from a request's head to its 2xx, body and commit included.",
            labels.FAST,
            {"source": OPEN},
        )
        self._skews = self._registry.histogram(
            "relay_signature_skew_seconds",
            "Our clock minus the time in a valid signature; below 0 the sender's clock is ahead.",
            labels.SKEW,
            {"source": OPEN},
        )
        self._signatures = self._registry.counter(
            "relay_signatures_total",
            "Verified requests by the label of the secret that verified them.",
            {"source": OPEN, "secret": OPEN},
        )
        self._events = self._registry.counter(
            "relay_events_total",
            "Verified requests by outcome.",
            {"source": OPEN, "event": labels.ALL_KINDS, "outcome": get_args(Outcome)},
        )
        self._leads = self._registry.counter(
            "relay_leads_captured_total",
            "New lead.captured events since the store was created, once each, when durable.",
            {"source": OPEN},
        )
        self._watched = self._registry.counter(
            "relay_video_watched_total",
            "New video.watched events since the store was created, once each, when durable.",
            {"source": OPEN, "milestone": MILESTONES},
        )
        self._last = self._registry.gauge(
            "relay_last_event_timestamp_seconds",
            "Receipt of the last new event; 0 if there was none since the store was created.",
            {"source": OPEN, "event": labels.ALL_KINDS},
        )

        self._quarantined = self._registry.gauge(
            "relay_quarantined_requests",
            "Requests that match no secret and are kept until the new secret is configured.",
            {"source": OPEN},
        )
        self._not_kept = self._registry.counter(
            "relay_quarantine_dropped_total",
            "Requests that match no secret and were dropped during a rotation, by limit.",
            {"source": OPEN, "reason": labels.DROPPED},
        )

    def _define_for_sinks(self) -> None:
        self._deliveries = self._registry.counter(
            "relay_deliveries_total",
            "Finished deliveries.",
            {"sink": OPEN, "outcome": labels.SETTLED},
        )
        self._attempts = self._registry.counter(
            "relay_attempts_total",
            "Delivery attempts; one delivery can take several.",
            {"sink": OPEN, "result": get_args(Result)},
        )
        self._damaged = self._registry.counter(
            "relay_damaged_bodies_total",
            "Deliveries that became dead letters because the stored body is damaged.",
            {"sink": OPEN},
        )
        self._attempt_times = self._registry.histogram(
            "relay_attempt_seconds", "Duration of an attempt.", labels.ATTEMPT, {"sink": OPEN}
        )
        self._lags = self._registry.histogram(
            "relay_delivery_lag_seconds",
            "Time from the receipt of an event to the end of its delivery.",
            labels.LAG,
            {"sink": OPEN},
        )
        self._pending = self._registry.gauge(
            "relay_pending_deliveries", "Pending deliveries.", {"sink": OPEN}
        )
        self._oldest = self._registry.gauge(
            "relay_oldest_pending_timestamp_seconds",
            "Receipt of the oldest event with a pending delivery; 0 when nothing is pending.",
            {"sink": OPEN},
        )
        self._dead = self._registry.gauge(
            "relay_dead_letters", "Dead letters, which can be replayed.", {"sink": OPEN}
        )
        self._states = self._registry.gauge(
            "relay_sink_state",
            "1 for the sink's current state, 0 for the others.",
            {"sink": OPEN, "state": labels.STATES},
        )
        self._state_since = self._registry.gauge(
            "relay_sink_state_timestamp_seconds",
            "Beginning of the sink's current state, over restarts.",
            {"sink": OPEN},
        )
        self._standstills = self._registry.gauge(
            "relay_sink_standstill_seconds",
            "Time for which an active sink has begun no due delivery, for no reason.",
            {"sink": OPEN},
        )
        self._waits = self._registry.gauge(
            "relay_sink_waits_for",
            "1 for the reason why the sink begins no delivery now, 0 for the others.",
            {"sink": OPEN, "reason": labels.WAITS},
        )

    def add_source(self, source: str) -> None:
        """Create all series of a source; existing ones keep their values."""
        self._registry.add("source", source)

    def add_sink(self, sink: str) -> None:
        """Create all series of a sink; existing ones keep their values."""
        self._registry.add("sink", sink)

    def drop_source(self, source: str) -> None:
        """Remove the series of a source that is no longer in the config."""
        self._registry.drop("source", source)

    def drop_sink(self, sink: str) -> None:
        """Remove the series of a sink that is no longer in the config."""
        self._registry.drop("sink", sink)

    def request(self, source: str, code: int) -> None:
        self._requests[source, code] += 1

    def not_http(self, code: int) -> None:
        """Count a response to a malformed request."""
        self._requests[UNKNOWN, code] += 1

    def connection_limited(self, listener: str, reason: str) -> None:
        self._limited[listener, reason] += 1

    def enriched(self, result: str) -> None:
        self._enriched[result] += 1

    def acknowledged(self, source: str, seconds: float) -> None:
        self._acks[source].observe(seconds)

    def rejected(self, source: str, reason: str) -> None:
        self._rejected[source, reason] += 1

    def mismatch_retried(self, source: str) -> None:
        self._mismatch_retries[source] += 1

    def show_secrets(self, source: str, secrets: Sequence[str]) -> None:
        """Create the series of these secrets and remove those of the source's other secrets."""
        for key in [key for key in self._signatures if key[0] == source and key[1] not in secrets]:
            del self._signatures[key]
        for secret in secrets:
            self._signatures.create(source=source, secret=secret)

    def verified(self, source: str, secret: str) -> None:
        self._signatures[source, secret] += 1

    def quarantined(self, source: str, count: int) -> None:
        self._quarantined[source] = count

    def not_kept(self, source: str, reason: str) -> None:
        self._not_kept[source, reason] += 1

    def skew(self, source: str, seconds: float) -> None:
        self._skews[source].observe(seconds)

    def received(self, source: str, kind: str, outcome: Outcome) -> None:
        """Count a verified request; `kind` is a documented one or `other`."""
        self._events[source, kind, outcome] += 1

    def counted(self, total: Total) -> None:
        """Set the counters to the store's totals, which survive restarts."""
        if total.milestone:
            self._watched[total.source, total.milestone] = total.events
        elif total.kind == LEAD_CAPTURED:
            self._leads[total.source] = total.events
        key, last_s = (total.source, total.kind), total.last_ms / 1000
        # A kind has one total per milestone, each with its own time.
        if last_s > self._last[key]:  # noqa: PLR1730  a call costs more
            self._last[key] = last_s

    def attempted(self, sink: str, result: Result, seconds: float) -> None:
        self._attempts[sink, result] += 1
        self._attempt_times[sink].observe(seconds)

    def damaged(self, sink: str, count: int) -> None:
        self._damaged[sink] += count

    def settled(self, sink: str, outcome: str, lag_s: float | None) -> None:
        """Count a finished delivery; a replayed one has no lag."""
        self._deliveries[sink, outcome] += 1
        if lag_s is not None:
            self._lags[sink].observe(lag_s)

    def backlog(self, sink: str, pending: int, dead: int, oldest_ms: int | None) -> None:
        self._pending[sink] = pending
        self._dead[sink] = dead
        self._oldest[sink] = (oldest_ms or 0) / 1000

    def sink_state(self, sink: str, state: str, *, since_ms: int) -> None:
        for known in labels.STATES:
            self._states[sink, known] = known == state
        self._state_since[sink] = since_ms / 1000

    def sink_waits(self, sink: str, reason: str | None) -> None:
        for known in labels.WAITS:
            self._waits[sink, known] = known == reason

    def standstill(self, sink: str, seconds: float) -> None:
        self._standstills[sink] = seconds

    def drop_sink_state(self, sink: str) -> None:
        """Stop exposing how a sink is that another relay dispatches now."""
        for gauge in (self._states, self._state_since, self._waits):
            gauge.drop(sink)
        self._standstills[sink] = 0
        self.flows.drop(sink)

    def last_events_ms(self, source: str) -> dict[str, int]:
        """Return the receipt of the last event of each kind, in milliseconds since the epoch."""
        return {
            kind: round(at_s * 1000)
            for (name, kind), at_s in self._last.items()
            if name == source and at_s
        }

    def acks(self) -> dict[str, tuple[int, ...]]:
        """Return a copy of the acknowledgements by source and bucket, that of slower ones last."""
        return {source: child.counts() for source, child in self._acks.items()}

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Render the text and its content type; takes milliseconds, so call it in a thread."""
        return self._registry.exposition(accept)
