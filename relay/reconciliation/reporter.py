"""Metrics, log lines and the activity stream of reconciliations: one method per fact."""

from collections.abc import Sequence

from relay.core.clock import Clock
from relay.core.event import Event
from relay.core.routing import Verdict
from relay.reconciliation.report import RunReport
from relay.store.absences import Absence
from relay.store.reconstructions import RunRecord
from relay.telemetry import log
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics


class ReconciliationReporter:
    """Reports on all sources."""

    def __init__(self, *, metrics: Metrics, activity: ActivityStream, clock: Clock) -> None:
        self._metrics = metrics
        self._activity = activity
        self._log = log.get()
        self._sampled = log.Sampled(clock)

    def reconstructed(self, event: Event, verdicts: Sequence[Verdict]) -> None:
        """A reconstructed event is on disk."""
        self._metrics.outages.reconstructed(event.source, event.known_kind)
        self._activity.publish(
            "reconstructed",
            at_ms=event.received_ms,
            source=event.source,
            id=event.id,
            kind=event.kind,
            sinks=[verdict.sink for verdict in verdicts],
        )

    def begun(self, run: RunRecord) -> None:
        self._activity.count("reconciliation")
        self._log.info("reconciliation.begun", run=run.id, source=run.source, dry_run=run.dry_run)

    def ended(self, run: RunRecord, report: RunReport) -> None:
        """A run is over; only the report's numbers are logged, because it names people."""
        self._activity.count("reconciliation")
        fields = {"run": run.id, "source": run.source, "dry_run": run.dry_run}
        counts = {
            "events": sum(report.events.values()),
            "unknown": sum(report.unknown.values()),
            "left": sum(report.left.values()),
            "erased": report.erased,
        }
        if report.failed is None:
            self._log.info(f"reconciliation.{run.state}", **fields, **counts)
        else:
            reason = report.failed
            self._log.warning(f"reconciliation.{run.state}", **fields, **counts, reason=reason)

    def lost(self, source: str, absences: Sequence[Absence]) -> None:
        """The relay was away for longer than the sender retries."""
        lost_s = round(sum(each.lacks.seconds for each in absences if each.lacks is not None))
        advice = f"relay reconcile --source {source} asks the sender's API for what was lost"
        self._log.warning("reconciliation.needed", source=source, lost_s=lost_s, advice=advice)

    def unreconciled(self, source: str, absences: Sequence[Absence]) -> None:
        """Show the absences of a source that no run has covered."""
        lost_s = sum(each.lacks.seconds for each in absences if each.lacks is not None)
        self._metrics.outages.unreconciled_loss(source, lost_s)

    def bug(self, error: Exception) -> None:
        """A run failed because of a bug."""
        self._log.error("relay.bug", **log.describe(error))

    def unavailable(self, error: Exception) -> None:
        self._sampled.line("store.unavailable", reason=str(error))
