"""Which forms of a period have no lead in the store."""

from collections.abc import Iterable, Mapping, Sequence

from relay.core.event import LEAD, folded
from relay.core.reconstruction import CLOCKS_MS
from relay.reconciliation.period import GIVE_UP_MS
from relay.reconciliation.views import SentForm
from relay.store.reconstructions import ReachedStep


def person_of(form: SentForm) -> str | None:
    """Return the folded address of a form; None without one."""
    email = form.submission.email
    return None if email is None else folded(email.strip()) or None


def forms_without_lead(
    forms: Iterable[SentForm],
    known: Mapping[tuple[str, str], Sequence[ReachedStep]],
    *,
    give_up_ms: int = GIVE_UP_MS,
) -> list[SentForm]:
    """Return the forms with an address to which no lead of the store belongs.

    `known` holds the steps by person and video. A lead belongs to the form with its id. Where one
    of the two has no id, it belongs to a form if it was received when the sender may have sent it,
    within `give_up_ms`: to one form at most, the nearest in time, because most arrive at once.
    """
    ordered = [form for form in sorted(forms, key=lambda form: form.at_ms) if person_of(form)]
    leads = {key: [step for step in steps if step.step == LEAD] for key, steps in known.items()}
    received = {lead.lead for some in leads.values() for lead in some}
    named = {form.submission.id for form in ordered} & received - {None}
    # A lead with a form's id is not left to another form of about the same time.
    left = {key: [lead for lead in some if lead.lead not in named] for key, some in leads.items()}
    unnamed = [form for form in ordered if form.submission.id not in named]
    matched = _matched_by_time(unnamed, left, give_up_ms)
    return [form for number, form in enumerate(unnamed) if number not in matched]


def _matched_by_time(
    forms: Sequence[SentForm],
    leads: Mapping[tuple[str, str], Sequence[ReachedStep]],
    give_up_ms: int,
) -> set[int]:
    """Return the numbers of the forms to which a lead belongs by its time."""
    pairs = []
    for number, form in enumerate(forms):
        key = (person_of(form) or "", form.video or "")
        for place, lead in enumerate(leads.get(key, ())):
            if _may_be(lead, form, give_up_ms):
                pairs.append((abs(lead.at_ms - form.at_ms), number, (key, place)))
    matched: set[int] = set()
    taken: set[object] = set()
    for _, number, lead_of in sorted(pairs):
        if number not in matched and lead_of not in taken:
            matched.add(number)
            taken.add(lead_of)
    return matched


def _may_be(lead: ReachedStep, form: SentForm, give_up_ms: int) -> bool:
    if lead.lead is not None and form.submission.id is not None:
        return False
    until_ms = form.until_ms + give_up_ms + CLOCKS_MS
    return form.at_ms - CLOCKS_MS <= lead.at_ms <= until_ms
