"""Columns of the audience's tables, in commands, on the page and in CSV files."""

from collections.abc import Callable, Mapping, Sequence

from relay.store.audience import Funnel, Grouping

KEYS: Mapping[Grouping, Sequence[str]] = {
    "video": ("title", "video"),
    "day": ("day",),
    "hour": ("hour",),
    "source": ("source",),
}
"""The fields of a group that name it."""

STEPS = ("started", "25%", "50%", "75%", "completed", "leads")
"""People by step, once each."""

FORMS = "forms"
"""Events of the last step: one person can send several."""

_EVENTS = (*(f"{step} events" for step in STEPS[:-1]), FORMS)


def csv_rows(by: Grouping, funnel: Funnel, shown: Callable[[str], str]) -> list[Sequence[object]]:
    """Return the rows of a CSV file, the names first; `shown` treats texts of senders."""
    rows: list[Sequence[object]] = [(*KEYS[by], *STEPS, *_EVENTS)]
    for group in funnel.groups:
        keys = (getattr(group, name) for name in KEYS[by])
        rows.append(
            (
                *("" if key is None else shown(str(key)) for key in keys),
                *(step.people for step in group.steps),
                *(step.events for step in group.steps),
            )
        )
    return rows
