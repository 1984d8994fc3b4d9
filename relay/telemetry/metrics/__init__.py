"""All metrics of the relay; no id, address or title is ever a label.

Values are kept in memory, so a scrape touches neither store nor sinks.
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from relay import __version__
from relay.core.delivery import Result
from relay.core.errors import BodyFault, RejectReason
from relay.core.event import KINDS, LEAD_CAPTURED, MILESTONES, WEBHOOK_TEST, Outcome
from relay.core.totals import Total
from relay.telemetry.metrics.registry import OPEN, Registry

UNKNOWN = "unknown"
"""The source label of requests that match no source's path."""

CODES = (200, 202, 401, 404, 405, 408, 413, 503)
NOT_HTTP = (400, 505)
"""Response codes for requests that are not HTTP/1, so their source is unknown."""
REASONS = (
    *get_args(RejectReason),
    *get_args(BodyFault),
    *("unavailable", "method", "path"),
)
LISTENERS = ("public", "admin")
LIMITS = ("total", "address", "busy", "files")
SETTLED = ("delivered", "dead")
DROPPED = ("count", "bytes", "rate", "store")
ENRICHED = ("answered", "cached", "erased", "late", "failed", "paused", "busy")
MEMBER_STATES = ("live", "away")
STATES = ("active", "throttled", "parked", "paused")
ALL_KINDS = (*KINDS, "other")
RECONSTRUCTED_KINDS = tuple(kind for kind in KINDS if kind != WEBHOOK_TEST)

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Buckets in seconds, dense around the goal of an acknowledgement, up to the sender's timeout."""
ACK_BOUNDS = FAST
ATTEMPT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LAG = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 43200, 86400)
_OFF = (1, 5, 10, 30, 60, 120, 300, 600)
SKEW = (*(-bound for bound in reversed(_OFF)), 0, *_OFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """Size of the store and of its disk's free space, which is None without a disk of its own."""

    store_bytes: int
    free_bytes: int | None
    min_free_bytes: int | None
    """With less free space, new events are answered with 503."""


class Build(NamedTuple):
    """Versions of what runs."""

    relay: str
    revision: str
    """Of the image; empty if unknown."""
    python: str
    sqlite: str = ""
    """Of the library, if that is the store's engine; else empty."""
    postgres: str = ""
    """Of the server, if that is the store's engine; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A copy of some metrics that only grow, by series."""

    accepted: Mapping[object, float]
    """New events."""
    delivered: Mapping[object, float]
    """Successful attempts."""
    failed: Mapping[object, float]
    """Other attempts."""
    acks: Mapping[str, Sequence[int]]
    """Acknowledgements by source: one count for each of `ACK_BOUNDS`, then of the slower ones."""


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
        self._define_for_process()
        self._define_for_cluster()
        self._define_for_sources()
        self._define_for_sinks()
        self.build = Build(__version__, revision, platform.python_version())
        self._build_info[self.build] = 1
        self.reloaded(successful=True)
        self._requests.create(source=UNKNOWN)
        for code in NOT_HTTP:
            self._requests.create(source=UNKNOWN, code=code)
        self._rejected.create(source=UNKNOWN)
        for source in sources:
            self.add_source(source)
        for sink in sinks:
            self.add_sink(sink)

    def _define_for_process(self) -> None:
        self._build_info = self._registry.gauge(
            "relay_build_info",
            "Always 1; the labels hold the versions.",
            dict.fromkeys(("version", "revision", "python", "sqlite", "postgres"), OPEN),
        )
        self._started = self._registry.gauge(
            "relay_start_time_seconds",
            "Start of this relay; unlike the process's own metric, present without /proc.",
        )
        self._reload_good = self._registry.gauge(
            "relay_config_last_reload_successful",
            "1 if the config that was read last is in use, 0 if it was refused.",
        )
        self._commits = self._registry.histogram(
            "relay_store_commit_seconds", "Duration of a commit, fsync included.", FAST
        )
        self._bytes = self._registry.gauge("relay_store_bytes", "Size of the store.")
        self._free = self._registry.gauge(
            "relay_store_free_bytes", "Free space on the disk that holds the store."
        )
        self._floor = self._registry.gauge(
            "relay_store_min_free_bytes",
            "With less free space than this, new events are answered with 503.",
        )
        # Only a store on a disk of this machine has them, and a 0 would raise alarms.
        self._free.clear()
        self._floor.clear()
        self._limited = self._registry.counter(
            "relay_connections_limited_total",
            "Connections closed, refused or delayed because of a limit.",
            {"listener": LISTENERS, "reason": LIMITS},
        )
        self._down = self._registry.gauge(
            "relay_downtime_seconds", "Time without a running relay before this start."
        )
        self._lost = self._registry.gauge(
            "relay_downtime_lost_seconds",
            "Part of the downtime that the sender's retries did not cover: its events are lost.",
        )

        self._enriched = self._registry.counter(
            "relay_enrichments_total",
            "Leads for sinks with enrich, by what came of asking what the person has watched.",
            {"result": ENRICHED},
        )
        self._open_loss = self._registry.gauge(
            "relay_unacknowledged_loss_seconds",
            "Time from which events are lost, in absences that no operator has acknowledged.",
        )

    def _define_for_cluster(self) -> None:
        self._members = self._registry.gauge(
            "relay_members",
            "Relays that share the store; away: its heartbeats have stopped.",
            {"state": MEMBER_STATES},
        )
        self._configs_differ = self._registry.gauge(
            "relay_members_configs_differ",
            "1 if live relays that share the store have different configs.",
        )
        self._free_sinks = self._registry.gauge(
            "relay_sinks_without_owner",
            "Sinks that no relay of those that share the store has taken over in time.",
        )
        self.no_cluster()

    def _define_for_sources(self) -> None:
        self._requests = self._registry.counter(
            "relay_requests_total",
            "Requests to the public listener by response; unknown: no source's path, or not HTTP.",
            {"source": OPEN, "code": CODES},
        )
        self._rejected = self._registry.counter(
            "relay_rejected_total",
            "Refused requests to the public listener.",
            {"source": OPEN, "reason": REASONS},
        )
        self._mismatch_retries = self._registry.counter(
            "relay_mismatch_retries_total",
            "Requests that match no secret and repeat an earlier one at the sender's retry times.",
            {"source": OPEN},
        )
        self._acks = self._registry.histogram(
            "relay_ack_seconds",
            "Time from a request's head to its 2xx, body and commit included.",
            FAST,
            {"source": OPEN},
        )
        self._skews = self._registry.histogram(
            "relay_signature_skew_seconds",
            "Our clock minus the time in a valid signature; below 0 the sender's clock is ahead.",
            SKEW,
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
            {"source": OPEN, "event": ALL_KINDS, "outcome": get_args(Outcome)},
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
            {"source": OPEN, "event": ALL_KINDS},
        )

        self._reconstructed = self._registry.counter(
            "relay_reconstructed_events_total",
            "Events made from the sender's API after an outage, since this start.",
            {"source": OPEN, "event": RECONSTRUCTED_KINDS},
        )
        self._unreconciled = self._registry.gauge(
            "relay_unreconciled_loss_seconds",
            "Time from which events are lost, in absences that no reconciliation has covered.",
            {"source": OPEN},
        )
        self._quarantined = self._registry.gauge(
            "relay_quarantined_requests",
            "Requests that match no secret and are kept until the new secret is configured.",
            {"source": OPEN},
        )
        self._not_kept = self._registry.counter(
            "relay_quarantine_dropped_total",
            "Requests that match no secret and were dropped during a rotation, by limit.",
            {"source": OPEN, "reason": DROPPED},
        )

    def _define_for_sinks(self) -> None:
        self._deliveries = self._registry.counter(
            "relay_deliveries_total", "Finished deliveries.", {"sink": OPEN, "outcome": SETTLED}
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
            "relay_attempt_seconds", "Duration of an attempt.", ATTEMPT, {"sink": OPEN}
        )
        self._lags = self._registry.histogram(
            "relay_delivery_lag_seconds",
            "Time from the receipt of an event to the end of its delivery.",
            LAG,
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
            {"sink": OPEN, "state": STATES},
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

    def show_secrets(self, source: str, labels: Sequence[str]) -> None:
        """Create the series of these secrets and remove those of the source's other secrets."""
        for key in [key for key in self._signatures if key[0] == source and key[1] not in labels]:
            del self._signatures[key]
        for label in labels:
            self._signatures.create(source=source, secret=label)

    def verified(self, source: str, secret: str) -> None:
        self._signatures[source, secret] += 1

    def quarantined(self, source: str, count: int) -> None:
        self._quarantined[source] = count

    def not_kept(self, source: str, reason: str) -> None:
        self._not_kept[source, reason] += 1

    def reconstructed(self, source: str, kind: str) -> None:
        """Count a reconstructed event, once it is on disk."""
        self._reconstructed[source, kind] += 1

    def unreconciled_loss(self, source: str, seconds: float) -> None:
        self._unreconciled[source] = seconds

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

    def sink_state(self, sink: str, state: str) -> None:
        for known in STATES:
            self._states[sink, known] = known == state

    def drop_sink_state(self, sink: str) -> None:
        """Stop exposing the state of a sink that another relay dispatches now."""
        self._states.drop(sink)

    def cluster(self, *, live: int, away: int, configs: int, free_sinks: int) -> None:
        """Set the figures of the relays that share the store: `configs` are different ones."""
        self._members["live"] = live
        self._members["away"] = away
        self._configs_differ[()] = configs > 1
        self._free_sinks[()] = free_sinks

    def no_cluster(self) -> None:
        """Stop exposing these figures, which a store of one relay does not have."""
        for gauge in (self._members, self._configs_differ, self._free_sinks):
            gauge.clear()

    def committed(self, seconds: float) -> None:
        self._commits[()].observe(seconds)

    def opened(self, engine: str, version: str) -> None:
        """Show the version of the store's engine."""
        self._build_info.clear()
        self.build = self.build._replace(**{engine: version})
        self._build_info[self.build] = 1

    def store_size(self, size: int) -> None:
        self._bytes[()] = size

    def store_space(self, free: int, *, floor: int) -> None:
        """Set the free space and `min_free`, so that alert rules need not repeat the config."""
        self._free[()] = free
        self._floor[()] = floor

    def was_down(self, seconds: float, lost_s: float) -> None:
        """Set the downtime before this start."""
        self._down[()] = seconds
        self._lost[()] = lost_s

    def started(self, at_ms: int) -> None:
        self._started[()] = at_ms / 1000

    def unacknowledged_loss(self, seconds: float) -> None:
        self._open_loss[()] = seconds

    def reloaded(self, *, successful: bool) -> None:
        self._reload_good[()] = successful

    def last_events_ms(self, source: str) -> dict[str, int]:
        """Return the receipt of the last event of each kind, in milliseconds since the epoch."""
        return {
            kind: round(at_s * 1000)
            for (name, kind), at_s in self._last.items()
            if name == source and at_s
        }

    def counts(self) -> Counts:
        """Return a copy of the counters that show the traffic."""
        attempts = self._attempts.items()
        return Counts(
            accepted={key: count for key, count in self._events.items() if key[2] == "accepted"},
            delivered={key: count for key, count in attempts if key[1] == "delivered"},
            failed={key: count for key, count in attempts if key[1] != "delivered"},
            acks={source: child.counts() for source, child in self._acks.items()},
        )

    def disk(self) -> Disk:
        """Return the sizes as of the last measurement, which runs every second."""
        return Disk(
            store_bytes=int(self._bytes[()]),
            free_bytes=_whole(self._free.get(())),
            min_free_bytes=_whole(self._floor.get(())),
        )

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Render the text and its content type; takes milliseconds, so call it in a thread."""
        return self._registry.exposition(accept)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
