"""Reconciliations: what an outage cost, asked of the sender's API; started, shown, cancelled."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Number, Paging, Text
from relay.admin.operation import Nothing, Operation
from relay.admin.services import AdminServices
from relay.core.errors import NotReconciled
from relay.core.event import SUBSCRIBABLE
from relay.store.reconstructions import NAMED, NamedFact, RunRecord, RunState


class RunId(msgspec.Struct, frozen=True, kw_only=True):
    """One reconciliation."""

    id: Number


class ReconciliationOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Which sources and which period; by default all that have an API, and the oldest absence."""

    source: Text | None = None
    since_ms: Number | None = None
    until_ms: Number | None = None
    """Exclusive; by default now."""
    dry_run: bool = False
    events: Sequence[Text] | None = None
    """Kinds to give back; by default all that the endpoint receives."""


class Doing(msgspec.Struct, frozen=True, kw_only=True):
    """What a reconciliation is doing."""

    doing: str
    """`waiting`, or videos or views that are read or compared."""
    done: int
    total: int
    """0 if it is not known."""


class ReconciliationView(msgspec.Struct, frozen=True, kw_only=True):
    """A reconciliation; `until_ms` leaves out what the sender may still be sending."""

    id: int
    source: str
    since_ms: int
    until_ms: int
    dry_run: bool
    begun_ms: int
    ended_ms: int | None
    state: RunState
    progress: Doing | None
    """None if it is over."""
    report: Mapping[str, Any] | None
    """Its numbers."""
    words: Sequence[str]
    """The report in sentences."""


class ReconciliationDetails(ReconciliationView, frozen=True, kw_only=True):
    """A reconciliation with the people, videos and leads of its report; at most 1,000."""

    named: Sequence[NamedFact]


class ReconciliationList(msgspec.Struct, frozen=True, kw_only=True):
    """One page, newest first; `next` is None on the last."""

    reconciliations: Sequence[ReconciliationView]
    next: int | None


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """The reconciliations that were started."""

    reconciliations: Sequence[ReconciliationView]


async def list_reconciliations(admin: AdminServices, page: Paging) -> ReconciliationList:
    """Reconciliations, newest first."""
    runs = await admin.store.reconstructions.runs(before=page.before, limit=page.limit + 1)
    shown, more = runs[: page.limit], len(runs) > page.limit
    return ReconciliationList(
        reconciliations=[_view(admin, run) for run in shown], next=shown[-1].id if more else None
    )


async def begin_reconciliation(
    admin: AdminServices, _: Nothing, order: ReconciliationOrder
) -> Begun:
    """Ask the sender's API what an outage cost, and deliver it as reconstructed events."""
    names, events = _names(admin, order.source), order.events or ()
    if unknown := [kind for kind in events if kind not in SUBSCRIBABLE]:
        known = ", ".join(SUBSCRIBABLE)
        raise HTTPException(422, f"No event is of kind {unknown[0]}; there are: {known}.")
    begun, refusals = [], []
    for name in names:
        try:
            run = await admin.reconciliations.begin(
                name,
                since_ms=order.since_ms,
                until_ms=order.until_ms,
                dry_run=order.dry_run,
                events=events,
            )
        except NotReconciled as error:
            refusals.append(error)
        else:
            begun.append(_view(admin, run))
    if not begun:
        raise refusals[0]
    return Begun(reconciliations=begun)


async def show_reconciliation(admin: AdminServices, path: RunId) -> ReconciliationDetails:
    """One reconciliation with its progress, its report, and whom and what that is about."""
    run = await _run(admin, path)
    return ReconciliationDetails(
        **asdict(_view(admin, run)), named=admin.reconciliations.named(run)
    )


async def cancel_reconciliation(admin: AdminServices, path: RunId) -> ReconciliationView:
    """End a reconciliation; what it has made stays."""
    run = await _run(admin, path)
    admin.reconciliations.cancel(path.id)
    return _view(admin, run)


async def _run(admin: AdminServices, path: RunId) -> RunRecord:
    run = await admin.store.reconstructions.run(path.id)
    if run is None:
        raise HTTPException(404, f"There is no reconciliation {path.id}.")
    return run


def _names(admin: AdminServices, source: str | None) -> Sequence[str]:
    known = [each.name for each in admin.config().sources]
    if source is not None and source not in known:
        raise HTTPException(422, f"There is no source {source}; there are: {', '.join(known)}.")
    names = list(admin.reconciliations.sources) if source is None else [source]
    if not names:
        raise HTTPException(409, "No source of the config has [source.api].")
    return names


def _view(admin: AdminServices, run: RunRecord) -> ReconciliationView:
    progress = admin.reconciliations.progress(run.id)
    # One whose end could not be written is over all the same.
    state = "failed" if run.state == "running" and progress is None else run.state
    report = run.report and {name: value for name, value in run.report.items() if name != NAMED}
    shown = {
        "state": state,
        "progress": progress
        and Doing(doing=progress.doing, done=progress.done, total=progress.total),
        "report": report,
        "words": admin.reconciliations.words(run),
    }
    return ReconciliationView(**asdict(run) | shown)


_MISSING = {404: "There is no such reconciliation."}

OPERATIONS = (
    Operation("GET", "/api/v1/reconciliations", list_reconciliations),
    Operation(
        "POST",
        "/api/v1/reconciliations",
        begin_reconciliation,
        {
            409: "There is nothing to reconcile; the detail says why.",
            422: "There is no such source or kind.",
        },
    ),
    Operation("GET", "/api/v1/reconciliations/{id:number}", show_reconciliation, _MISSING),
    Operation(
        "POST", "/api/v1/reconciliations/{id:number}/cancel", cancel_reconciliation, _MISSING
    ),
)
