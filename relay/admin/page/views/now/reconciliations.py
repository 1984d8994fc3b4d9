"""Reconciliations: what outages cost, asked of the sender's API, and their reports."""

import msgspec

from relay.admin.api import reconciliations as api
from relay.admin.api.parameters import Paging
from relay.admin.operation import Nothing
from relay.admin.page.view import Action, PageView
from relay.admin.page.visit import ActionResult, Context, Notice, PageVisit
from relay.core.event import SUBSCRIBABLE

PATH = "/reconciliations"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The form that starts a run of one source, for its oldest absence that none has covered."""

    source: str
    kind: str | None = None
    """The only kind of events that is asked for."""
    trial: str | None = None
    """Set for a dry run."""


async def read_reconciliations(visit: PageVisit, page: Paging) -> Context:
    """Read one page of the list, and the sources that can be asked."""
    shown = await visit.page(api.list_reconciliations, page, rows="reconciliations")
    service = visit.admin.reconciliations
    return {
        "runs": shown.response.reconciliations,
        "rows": shown.attributes,
        "next": shown.response.next,
        "before": page.before,
        "kinds": SUBSCRIBABLE,
        "sources": [(name, len(service.unreconciled.get(name, ()))) for name in service.sources],
    }


async def read_reconciliation(visit: PageVisit, path: api.RunId) -> Context:
    """Read one run with the people, videos and leads that its report names."""
    return {"run": await visit.run(api.show_reconciliation, path)}


async def begin(visit: PageVisit, _: Nothing, form: Start) -> ActionResult:
    """Start a run."""
    is_trial = form.trial is not None
    events = None if form.kind is None else [form.kind]
    order = api.ReconciliationOrder(source=form.source, events=events, dry_run=is_trial)
    (run,) = (await visit.run(api.begin_reconciliation, Nothing(), order)).reconciliations
    text = f"Reconciliation {run.id} of {form.source} has begun"
    return ActionResult(
        to=visit.url(PATH),
        notice=Notice(text=f"{text}, as a trial: it changes nothing." if is_trial else f"{text}."),
    )


async def cancel(visit: PageVisit, path: api.RunId, _: Nothing) -> ActionResult:
    """End a run."""
    await visit.run(api.cancel_reconciliation, path)
    text = f"Reconciliation {path.id} ends; what it has made stays."
    return ActionResult(to=visit.url(PATH), notice=Notice(text=text))


ROUTES = (
    PageView(
        PATH, read_reconciliations, "Reconciliations", "reconciliations.html", topics=("changes",)
    ),
    PageView(
        f"{PATH}/{{id:number}}",
        read_reconciliation,
        "Reconciliation",
        "reconciliation.html",
        topics=("changes",),
    ),
    Action(f"{PATH}/begin", begin),
    Action(f"{PATH}/{{id:number}}/cancel", cancel),
)
