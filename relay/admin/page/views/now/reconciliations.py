"""Reconciliations: what outages cost, asked of the sender's API, and their reports."""

from functools import partial

import msgspec

from relay.admin.api.parameters import Paging
from relay.admin.api.reconciliations import (
    ReconciliationList,
    ReconciliationOrder,
    RunId,
    begin_reconciliation,
    cancel_reconciliation,
    list_reconciliations,
    show_reconciliation,
)
from relay.admin.operation import Nothing
from relay.admin.page.lists import ListReader
from relay.admin.page.view import Action, View
from relay.admin.page.visit import Context, Done, Notice, Visit
from relay.core.event import SUBSCRIBABLE

PATH = "/reconciliations"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The form that starts a run of one source, for its oldest absence that none has covered."""

    source: str
    kind: str | None = None
    """The only kind of events that is asked for."""
    trial: str | None = None
    """Set for a dry run."""


async def read_reconciliations(visit: Visit, page: Paging) -> Context:
    """Read one page of the list, and the sources that can be asked."""
    reader = ListReader(partial(visit.run, list_reconciliations), "reconciliations", "id")
    shown = await reader.page(visit.held, "rows", page)
    result: ReconciliationList = shown.response
    service = visit.admin.reconciliations
    return {
        "runs": result.reconciliations,
        "rows": shown.attributes,
        "next": result.next,
        "before": page.before,
        "kinds": SUBSCRIBABLE,
        "sources": [(name, len(service.unreconciled.get(name, ()))) for name in service.sources],
    }


async def read_reconciliation(visit: Visit, path: RunId) -> Context:
    """Read one run with the people, videos and leads that its report names."""
    return {"run": await visit.run(show_reconciliation, path)}


async def begin(visit: Visit, _: Nothing, form: Start) -> Done:
    """Start a run."""
    is_trial = form.trial is not None
    events = None if form.kind is None else [form.kind]
    order = ReconciliationOrder(source=form.source, events=events, dry_run=is_trial)
    (run,) = (await visit.run(begin_reconciliation, Nothing(), order)).reconciliations
    text = f"Reconciliation {run.id} of {form.source} has begun"
    return Done(
        to=visit.url(PATH),
        notice=Notice(text=f"{text}, as a trial: it changes nothing." if is_trial else f"{text}."),
    )


async def cancel(visit: Visit, path: RunId, _: Nothing) -> Done:
    """End a run."""
    await visit.run(cancel_reconciliation, path)
    text = f"Reconciliation {path.id} ends; what it has made stays."
    return Done(to=visit.url(PATH), notice=Notice(text=text))


VIEWS = (
    View(
        path=PATH,
        title="Reconciliations",
        template="reconciliations.html",
        read=read_reconciliations,
        topics=("changes",),
    ),
    View(
        path=f"{PATH}/{{id:number}}",
        title="Reconciliation",
        template="reconciliation.html",
        read=read_reconciliation,
        topics=("changes",),
    ),
)

ACTIONS = (
    Action(path=f"{PATH}/begin", perform=begin),
    Action(path=f"{PATH}/{{id:number}}/cancel", perform=cancel),
)
