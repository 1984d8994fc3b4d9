"""Absences: when the relay was away, what that cost, and its acknowledgement."""

from functools import partial

from relay.admin.api.absences import (
    AbsenceId,
    AbsenceList,
    acknowledge_absence,
    list_absences,
)
from relay.admin.api.parameters import Paging
from relay.admin.operation import Nothing
from relay.admin.page.lists import ListReader
from relay.admin.page.view import Action, View
from relay.admin.page.visit import Context, Done, Notice, Visit


async def read_absences(visit: Visit, page: Paging) -> Context:
    reader = ListReader(partial(visit.run, list_absences), "absences", "id")
    shown = await reader.page(visit.held, "rows", page)
    result: AbsenceList = shown.response
    return {
        "absences": result.absences,
        "rows": shown.attributes,
        "next": result.next,
        "before": page.before,
    }


async def acknowledge(visit: Visit, path: AbsenceId, _: Nothing) -> Done:
    """Acknowledge an absence, which ends the alerts on its loss."""
    absence = await visit.run(acknowledge_absence, path)
    text = f"Absence {absence.id} is acknowledged: it raises no alert any more."
    return Done(to=visit.url("/absences"), notice=Notice(text=text))


VIEW = View(
    path="/absences",
    title="Absences",
    template="absences.html",
    read=read_absences,
    topics=("changes",),
)

ACKNOWLEDGE = Action(path="/absences/{id:number}/acknowledge", perform=acknowledge)
