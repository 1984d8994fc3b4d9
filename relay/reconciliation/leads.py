"""Which forms of a period have no lead in the store."""

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence

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
    forms: Iterable[Form], known: Mapping[tuple[str, str], Sequence[Step]]
) -> list[Form]:
    """Return the forms with an address to which no lead of the store belongs.

    `known` holds the steps by person and video. A lead belongs to a form if it was received when
    the sender may have sent it; each belongs to one form at most.
    """
    leads = {key: _times(steps) for key, steps in known.items()}
    absent = []
    for form in sorted(forms, key=lambda form: form.at_ms):
        person = person_of(form)
        if person is None:
            continue
        times = leads.get((person, form.video or ""), [])
        match = next((at_ms for at_ms in times if _belongs(at_ms, form)), None)
        if match is None:
            absent.append(form)
        else:
            times.remove(match)
    return absent


def _times(steps: Iterable[Step]) -> list[int]:
    times: list[int] = []
    for step in steps:
        if step.step == LEAD:
            insort(times, step.at_ms)
    return times


def _belongs(at_ms: int, form: Form) -> bool:
    return form.at_ms - CLOCKS_MS <= at_ms <= form.at_ms + GIVE_UP_MS + CLOCKS_MS
