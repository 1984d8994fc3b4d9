"""Every metric of the relay, in the words of the domain; no id, address or title is ever a label.

Counters live in memory and are kept up to date, so that a scrape touches neither store nor sinks.
"""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import get_args

from relay.core.delivery import Result
from relay.core.errors import BodyFault, RejectReason
from relay.core.event import KINDS, LEAD_CAPTURED, MILESTONES, Outcome
from relay.core.totals import Total
from relay.telemetry.metrics.registry import Registry

UNKNOWN = "unknown"
"""The source label of a request to no source's path."""

CODES = (200, 202, 401, 404, 405, 408, 413, 503)
NOT_HTTP = (400, 505)
"""Answered to what is no HTTP of version 1, so that its source is not known either."""
REASONS = (
    *get_args(RejectReason),
    *get_args(BodyFault),
    *("unavailable", "method", "path"),
)
LISTENERS = ("public", "admin")
LIMITS = ("total", "address", "busy", "files")
SETTLED = ("delivered", "dead")
DROPPED = ("count", "bytes", "rate", "store")
STATES = ("active", "throttled", "parked", "paused")

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Around the goal of an acknowledgement; the sender gives up after 10 s (seconds)."""
ATTEMPT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LAG = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 43200, 86400)
_OFF = (1, 5, 10, 30, 60, 120, 300, 600)
SKEW = (*(-bound for bound in reversed(_OFF)), 0, *_OFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The store's files and the disk that they are on."""

    store_bytes: int
    free_bytes: int
    min_free_bytes: int
    """With less free space than this, new events are answered with 503."""


class Metrics:
    """What the relay counts; every method is cheap and none fails for a name it does not know.

    Source and sink names are those of the config; times are in seconds, instants in milliseconds.
    """

    def __init__(
        self,
        sources: Sequence[str],
        sinks: Sequence[str],
        *,
        sqlite: str,
        revision: str = "",
    ) -> None:
        """`sqlite` is the version of the library that the store runs on."""
        self._registry = Registry()
        self._define_for_process()
        self._define_for_sources()
        self._define_for_sinks()
        build = (version("relay"), revision, platform.python_version(), sqlite)
        self._build[build] = 1
        self.reloaded(successful=True)
        self._requests.exist((UNKNOWN,), (*CODES, *NOT_HTTP))
        self._rejected.exist((UNKNOWN,), REASONS)
        self._limited.exist(LISTENERS, LIMITS)
        for source in sources:
            self.add_source(source)
        for sink in sinks:
            self.add_sink(sink)

    def _define_for_process(self) -> None:
        self._build = self._registry.gauge(
            "relay_build_info",
            "Always 1; the labels say what runs.",
            *("version", "revision", "python", "sqlite"),
        )
        self._started = self._registry.gauge(
            "relay_start_time_seconds",
            "When this relay was started; unlike the process's own, wherever /proc is hidden, too.",
        )
        self._reload_good = self._registry.gauge(
            "relay_config_last_reload_successful",
            "1 if the config that was read last is the one in use.",
        )
        self._commits = self._registry.histogram(
            "relay_store_commit_seconds", "How long a commit took, fsync included.", FAST
        )
        self._bytes = self._registry.gauge("relay_store_bytes", "Size of the store's files.")
        self._free = self._registry.gauge(
            "relay_store_free_bytes", "Free space on the disk that holds the store."
        )
        self._floor = self._registry.gauge(
            "relay_store_min_free_bytes",
            "With less free space than this, new events are answered with 503.",
        )
        self._limited = self._registry.counter(
            "relay_connections_limited_total",
            "Connections closed, refused or kept waiting because of a limit.",
            *("listener", "reason"),
        )
        self._down = self._registry.gauge(
            "relay_downtime_seconds", "How long no relay had the store before this one started."
        )
        self._lost = self._registry.gauge(
            "relay_downtime_lost_seconds",
            "How much of that the sender's tries did not bridge: events are missing from it.",
        )

        self._open_loss = self._registry.gauge(
            "relay_unacknowledged_loss_seconds",
            "Time from which events are lost, in absences that no operator has acknowledged.",
        )

    def _define_for_sources(self) -> None:
        self._requests = self._registry.counter(
            "relay_requests_total",
            "Requests to the public listener by answer; unknown: to no source's path, or no HTTP.",
            *("source", "code"),
        )
        self._rejected = self._registry.counter(
            "relay_rejected_total",
            "Requests to the public listener that were turned away.",
            *("source", "reason"),
        )
        self._mismatch_retries = self._registry.counter(
            "relay_mismatch_retries_total",
            "Requests that fit no secret and repeat an earlier one when the sender would.",
            "source",
        )
        self._acks = self._registry.histogram(
            "relay_ack_seconds",
            "From a request's head to its 2xx, with the reading of the body and the commit.",
            FAST,
            "source",
        )
        self._skews = self._registry.histogram(
            "relay_signature_skew_seconds",
            "Our clock less the time in a matching signature; below 0 the sender's clock is ahead.",
            SKEW,
            "source",
        )
        self._signatures = self._registry.counter(
            "relay_signatures_total",
            "Verified requests by the label of the secret that verified them.",
            *("source", "secret"),
        )
        self._events = self._registry.counter(
            "relay_events_total",
            "Verified requests by what became of them.",
            *("source", "event", "outcome"),
        )
        self._leads = self._registry.counter(
            "relay_leads_captured_total",
            "New lead.captured events since the store was made, once each, after they are durable.",
            "source",
        )
        self._watched = self._registry.counter(
            "relay_video_watched_total",
            "New video.watched events since the store was made, once each, once they are durable.",
            *("source", "milestone"),
        )
        self._last = self._registry.gauge(
            "relay_last_event_timestamp_seconds",
            "When the last new event came; 0 if none did since the store was made.",
            *("source", "event"),
        )

        self._quarantined = self._registry.gauge(
            "relay_quarantined_requests",
            "Requests that fit no secret and are kept until the new one is there.",
            "source",
        )
        self._not_kept = self._registry.counter(
            "relay_quarantine_dropped_total",
            "Requests that fit no secret and were not kept during a rotation, by the limit.",
            *("source", "reason"),
        )

    def _define_for_sinks(self) -> None:
        self._deliveries = self._registry.counter(
            "relay_deliveries_total", "Deliveries that came to an end.", "sink", "outcome"
        )
        self._attempts = self._registry.counter(
            "relay_attempts_total",
            "Tries to deliver; one delivery can take several.",
            *("sink", "result"),
        )
        self._damaged = self._registry.counter(
            "relay_damaged_bodies_total",
            "Deliveries that became dead letters because the stored body is damaged.",
            "sink",
        )
        self._attempt_times = self._registry.histogram(
            "relay_attempt_seconds", "How long a try took.", ATTEMPT, "sink"
        )
        self._lags = self._registry.histogram(
            "relay_delivery_lag_seconds",
            "From the receipt of an event to the end of its delivery.",
            LAG,
            "sink",
        )
        self._pending = self._registry.gauge(
            "relay_pending_deliveries", "Deliveries still to be made.", "sink"
        )
        self._oldest = self._registry.gauge(
            "relay_oldest_pending_timestamp_seconds",
            "When the oldest event came that is still to be delivered; 0 when nothing is pending.",
            "sink",
        )
        self._dead = self._registry.gauge(
            "relay_dead_letters", "Deliveries that were given up and can be replayed.", "sink"
        )
        self._states = self._registry.gauge(
            "relay_sink_state",
            "1 for the state that the sink is in, 0 for the others.",
            *("sink", "state"),
        )

    def add_source(self, source: str) -> None:
        """Let every series of the source exist; harmless for one that is there."""
        label, kinds = (source,), (*KINDS, "other")
        self._requests.exist(label, CODES)
        self._rejected.exist(label, REASONS)
        self._mismatch_retries.exist(label)
        self._acks.exist(label)
        self._skews.exist(label)
        self._events.exist(label, kinds, get_args(Outcome))
        self._leads.exist(label)
        self._watched.exist(label, MILESTONES)
        self._last.exist(label, kinds)
        self._quarantined.exist(label)
        self._not_kept.exist(label, DROPPED)

    def add_sink(self, sink: str) -> None:
        """Let every series of the sink exist; harmless for one that is there."""
        label = (sink,)
        self._deliveries.exist(label, SETTLED)
        self._attempts.exist(label, get_args(Result))
        self._states.exist(label, STATES)
        self._damaged.exist(label)
        self._attempt_times.exist(label)
        self._lags.exist(label)
        for gauge in (self._pending, self._oldest, self._dead):
            gauge.exist(label)

    def drop_source(self, source: str) -> None:
        """Forget the series of a source that the config no longer has."""
        self._registry.drop("source", source)

    def drop_sink(self, sink: str) -> None:
        """Forget the series of a sink that the config no longer has."""
        self._registry.drop("sink", sink)

    def request(self, source: str, code: int) -> None:
        self._requests[source, code] += 1

    def not_http(self, code: int) -> None:
        """Count what was answered before it was a request."""
        self._requests[UNKNOWN, code] += 1

    def connection_limited(self, listener: str, reason: str) -> None:
        self._limited[listener, reason] += 1

    def acknowledged(self, source: str, seconds: float) -> None:
        self._acks[source].observe(seconds)

    def rejected(self, source: str, reason: str) -> None:
        self._rejected[source, reason] += 1

    def mismatch_retried(self, source: str) -> None:
        self._mismatch_retries[source] += 1

    def show_secrets(self, source: str, labels: Sequence[str]) -> None:
        """Let the series of these secrets exist, and of no other of the source."""
        for key in [key for key in self._signatures if key[0] == source and key[1] not in labels]:
            del self._signatures[key]
        self._signatures.exist((source,), labels)

    def verified(self, source: str, secret: str) -> None:
        self._signatures[source, secret] += 1

    def quarantined(self, source: str, count: int) -> None:
        self._quarantined[source] = count

    def not_kept(self, source: str, reason: str) -> None:
        self._not_kept[source, reason] += 1

    def skew(self, source: str, seconds: float) -> None:
        self._skews[source].observe(seconds)

    def received(self, source: str, kind: str, outcome: Outcome) -> None:
        """Count a verified request; the kind is a known one or `other`."""
        self._events[source, kind, outcome] += 1

    def counted(self, total: Total) -> None:
        """Show what the store has counted, over all relays that had it."""
        if total.milestone:
            self._watched[total.source, total.milestone] = total.events
        elif total.kind == LEAD_CAPTURED:
            self._leads[total.source] = total.events
        key, last_s = (total.source, total.kind), total.last_ms / 1000
        # The other milestones of the kind have totals of their own.
        if last_s > self._last[key]:  # noqa: PLR1730  a call costs more
            self._last[key] = last_s

    def attempted(self, sink: str, result: Result, seconds: float) -> None:
        self._attempts[sink, result] += 1
        self._attempt_times[sink].observe(seconds)

    def damaged(self, sink: str, count: int) -> None:
        self._damaged[sink] += count

    def settled(self, sink: str, outcome: str, lag_s: float | None) -> None:
        """Count an end; without a lag for what a replay has sent again."""
        self._deliveries[sink, outcome] += 1
        if lag_s is not None:
            self._lags[sink].observe(lag_s)

    def backlog(self, sink: str, pending: int, dead: int, oldest_ms: int | None) -> None:
        self._pending[sink] = pending
        self._dead[sink] = dead
        self._oldest[sink] = (oldest_ms or 0) / 1000

    def sink_state(self, sink: str, state: str) -> None:
        for known in STATES:
            self._states[sink, known] = known == state

    def committed(self, seconds: float) -> None:
        self._commits[()].observe(seconds)

    def store_size(self, size: int, free: int) -> None:
        """Both in bytes."""
        self._bytes[()] = size
        self._free[()] = free

    def store_floor(self, min_free: int) -> None:
        """In bytes; rules compare the free space with it, so that none has to repeat the config."""
        self._floor[()] = min_free

    def was_down(self, seconds: float, lost_s: float) -> None:
        """Both are of the time before this start."""
        self._down[()] = seconds
        self._lost[()] = lost_s

    def started(self, at_ms: int) -> None:
        self._started[()] = at_ms / 1000

    def unacknowledged_loss(self, seconds: float) -> None:
        self._open_loss[()] = seconds

    def reloaded(self, *, successful: bool) -> None:
        self._reload_good[()] = successful

    def last_events_ms(self, source: str) -> dict[str, int]:
        """When the last event of each kind came, in milliseconds since the epoch."""
        return {
            kind: round(at_s * 1000)
            for (name, kind), at_s in self._last.items()
            if name == source and at_s
        }

    def disk(self) -> Disk:
        """As of the last look, which is made every second."""
        return Disk(
            store_bytes=int(self._bytes[()]),
            free_bytes=int(self._free[()]),
            min_free_bytes=int(self._floor[()]),
        )

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Render the text and its content type; takes milliseconds, so call it in a thread."""
        return self._registry.exposition(accept)
