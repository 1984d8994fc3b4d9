"""Which forms of a period have no lead in the store."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from relay.core.event import LEAD, folded
from relay.reconciliation.period import GIVE_UP_MS
from relay.reconciliation.views import Form
from relay.store.reconstructions import Step

CLOCKS_MS = 300_000
"""Difference of clocks that is allowed for (video-service.md, section 6)."""


def person_of(form: Form) -> str | None:
    """Return the folded address of a form; None without one."""
    email = form.submission.email
    return None if email is None else folded(email.strip()) or None


def forms_without_lead(
    forms: Iterable[Form],
    known: Mapping[tuple[str, str], Sequence[Step]],
    *,
    give_up_ms: int = GIVE_UP_MS,
) -> list[Form]:
    """Return the forms with an address to which no lead of the store belongs.

    `known` holds the steps by person and video. A lead belongs to the form with its id. Where one
    of the two has no id, it belongs to a form if it was received when the sender may have sent it,
    within `give_up_ms`; each belongs to one form at most.
    """
    leads = {
        key: sorted((step for step in steps if step.step == LEAD), key=lambda step: step.at_ms)
        for key, steps in known.items()
    }
    ordered = [form for form in sorted(forms, key=lambda form: form.at_ms) if person_of(form)]
    # A lead with a form's id is not left to another form of about the same time.
    unnamed = [form for form in ordered if not _take(leads, form, _is_named)]

    def may_be(lead: Step, form: Form) -> bool:
        has_ids = lead.lead is not None and form.submission.id is not None
        latest_ms = form.at_ms + give_up_ms + CLOCKS_MS
        return not has_ids and form.at_ms - CLOCKS_MS <= lead.at_ms <= latest_ms

    return [form for form in unnamed if not _take(leads, form, may_be)]


def _is_named(lead: Step, form: Form) -> bool:
    return lead.lead is not None and lead.lead == form.submission.id


def _take(
    leads: Mapping[tuple[str, str], list[Step]], form: Form, belongs: Callable[[Step, Form], bool]
) -> bool:
    """Take out the first lead that belongs to a form; whether there is one."""
    candidates = leads.get((person_of(form) or "", form.video or ""), [])
    match = next((lead for lead in candidates if belongs(lead, form)), None)
    if match is not None:
        candidates.remove(match)
    return match is not None
