"""Now: whether all is well, the last hour, and every sink; the absences, and the runbook."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from relay.admin.api.absences import (
    AbsenceId,
    acknowledge_absence,
    list_absences,
)
from relay.admin.api.audit import AuditQuery, list_changes
from relay.admin.api.parameters import Paging
from relay.admin.api.statistics import TimeQuery, count_minutes, show_acceptance
from relay.admin.api.status import StatusReport, show_status
from relay.admin.facts import LastEvent, total_dead
from relay.admin.operation import Nothing
from relay.admin.page import charts
from relay.admin.page.first_steps import first_steps
from relay.admin.page.live import EVERY_TOPIC
from relay.admin.page.text import formats
from relay.admin.page.view import Action, PageView, Section
from relay.admin.page.views.changes.descriptions import ChangeRow, change_row
from relay.admin.page.views.now import reconciliations
from relay.admin.page.views.sinks.section import sink_rows
from relay.admin.page.visit import ActionResult, Context, Notice, PageVisit
from relay.core.errors import StoreError
from relay.core.minutes import HOUR_MS, MINUTE_MS, Minute, minute_of, starts

CHANGES_SHOWN = 4


class Hour(msgspec.Struct, frozen=True):
    """The charts of the last hour."""

    accepted: charts.Stack
    delivered: charts.Stack
    accepted_total: int
    delivered_total: int
    failed_total: int
    ticks: Sequence[str]


async def read_now(visit: PageVisit, _: Nothing) -> Context:
    """Read what the first view shows."""
    status = await visit.run(show_status, Nothing())
    kinds = _kinds(status)
    return {
        "status": status,
        "sinks": await sink_rows(visit, status.sinks),
        "hour": _hour(await _minutes(visit)),
        "acceptance": await visit.run(show_acceptance, Nothing()),
        "kinds": kinds,
        "changes": await _changes(visit),
        "steps": first_steps(visit) if not kinds else (),
        **_totals(status),
    }


async def _minutes(visit: PageVisit) -> Sequence[Minute]:
    """Return the minutes of the last hour; without a count if the store cannot be read."""
    until_ms = minute_of(visit.now_ms) + MINUTE_MS
    since_ms = until_ms - HOUR_MS
    try:
        return list((await visit.run(count_minutes, TimeQuery(since_ms=since_ms))).minutes)
    except StoreError:
        return [Minute(at_ms, None, None, None) for at_ms in starts(since_ms, until_ms)]


async def _changes(visit: PageVisit) -> list[ChangeRow]:
    try:
        changes = (await visit.run(list_changes, AuditQuery(limit=CHANGES_SHOWN))).changes
    except StoreError:
        # The verdict says that the store cannot be read.
        return []
    return [change_row(visit, change) for change in changes]


def _hour(minutes: Sequence[Minute]) -> Hour:
    accepted = [minute.accepted or 0 for minute in minutes]
    delivered = [minute.delivered or 0 for minute in minutes]
    failed = [minute.failed or 0 for minute in minutes]
    return Hour(
        accepted=charts.stacked([[count] for count in accepted], ["info"]),
        delivered=charts.stacked(list(zip(delivered, failed, strict=True)), ["ok", "bad"]),
        accepted_total=sum(accepted),
        delivered_total=sum(delivered),
        failed_total=sum(failed),
        ticks=charts.ticks([formats.minute(minute.at_ms) for minute in minutes]),
    )


def _kinds(status: StatusReport) -> list[LastEvent]:
    """Return the last event of each kind over all sources.

    By name, because by time the rows would change places under the pointer with every event.
    """
    newest: dict[str, LastEvent] = {}
    for source in status.sources:
        for event in source.last_events:
            known = newest.get(event.kind)
            if known is None or known.at_ms < event.at_ms:
                newest[event.kind] = event
    return sorted(newest.values(), key=lambda event: event.kind)


def _totals(status: StatusReport) -> Mapping[str, Any]:
    oldest = [each.oldest_pending_ms for each in status.sinks if each.oldest_pending_ms]
    skews = [each.traffic.skew_s for each in status.sources if each.traffic.skew_s is not None]
    return {
        "pending": sum(each.pending or 0 for each in status.sinks),
        "dead": total_dead(status.sinks),
        "oldest_ms": min(oldest, default=None),
        "skew_s": max(skews, key=abs, default=None),
    }


async def read_runbook(_: PageVisit, __: Nothing) -> Context:
    """The text stands in the template."""
    return {}


async def read_absences(visit: PageVisit, page: Paging) -> Context:
    shown = await visit.page(list_absences, page, rows="absences")
    return {
        "absences": shown.response.absences,
        "rows": shown.attributes,
        "next": shown.response.next,
        "before": page.before,
    }


async def acknowledge(visit: PageVisit, path: AbsenceId, _: Nothing) -> ActionResult:
    """Acknowledge an absence, which ends the alerts on its loss."""
    absence = await visit.run(acknowledge_absence, path)
    text = f"Absence {absence.id} is acknowledged: it raises no alert any more."
    return ActionResult(to=visit.url("/absences"), notice=Notice(text=text))


SECTION = Section(
    name="Now",
    path="/",
    key="n",
    routes=(
        PageView("/", read_now, "Now", "now.html", topics=EVERY_TOPIC),
        PageView("/runbook", read_runbook, "Runbook", "runbook.html"),
        PageView("/absences", read_absences, "Absences", "absences.html", topics=("changes",)),
        Action("/absences/{id:number}/acknowledge", acknowledge),
        *reconciliations.ROUTES,
    ),
)
