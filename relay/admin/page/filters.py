"""The filter of events as a form: its fields, and what they select.

A person stands in it as the store's digest, never as an address.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
from msgspec.structs import asdict
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Filter, Person, Text, Words
from relay.admin.page.filter_bar import ANY_KIND, SINCE, UNTIL, Chip, Field, same
from relay.admin.page.reasons import check_reason
from relay.admin.page.text.formats import iso, shortened
from relay.admin.page.text.moments import Time, moment
from relay.admin.page.visit import PERSONAL_FIELDS, Visit
from relay.core.addresses import ADDRESS
from relay.core.event import KINDS
from relay.store.selection import Outcome, Selection


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of the form; those of `Filter`, with times for people."""

    kind: Text | None = None
    source: Text | None = None
    sink: Text | None = None
    outcome: Outcome | None = None
    reason: Text | None = None
    since: Time | None = None
    until: Time | None = None
    id: Text | None = None
    """The beginning of an id."""
    exact_id: Text | None = None
    """A whole id; links to one event have it, and the form has no field for it."""
    video: Text | None = None
    person: Person | None = None
    words: Words | None = None

    @property
    def given(self) -> Mapping[str, str]:
        """The fields that are filled in."""
        values = {name: getattr(self, name) for name in EventFilter.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}

    async def filter(self, visit: Visit) -> Filter:
        """Convert to the API's filter; raises HTTPException.

        A viewer's id is a whole one: by beginnings, it could spell out an address in hidden ids.
        """
        if self.person or self.words:
            visit.require_admin("Viewers cannot filter by person or by words.")
        visit.check_filter(*self.given.values())
        visit.check_kind(self.kind)
        await check_reason(visit, self.reason)
        if self.words is not None and ADDRESS.search(self.words):
            text = "Words stand in the URL, where no address belongs: use the field for a person."
            raise HTTPException(400, text)
        return Filter(
            id=self.exact_id if visit.may_change else self.exact_id or self.id,
            id_prefix=self.id if visit.may_change else None,
            source=self.source,
            kind=self.kind,
            since_ms=moment("From", self.since, visit.now_ms),
            until_ms=moment("Until", self.until, visit.now_ms),
            video=self.video,
            person=self.person,
            words=self.words,
            sink=self.sink,
            outcome=self.outcome,
            reason=self.reason,
        )


_LABELS = {
    "kind": "Kind",
    "source": "Source",
    "sink": "Sink",
    "outcome": "Outcome",
    "reason": "Reason contains",
    "since": "From (UTC)",
    "until": "Until (UTC)",
    "id": "Id begins with",
    "exact_id": "Id",
    "video": "Video",
    "person": "Person",
    "words": "Words in the body",
}
_FIELDS = {"id": "exact_id", "id_prefix": "id", "since_ms": "since", "until_ms": "until"}
"""Names of the form's fields that are not those of the API."""


def event_fields(visit: Visit, chosen: EventFilter) -> Sequence[Field]:
    """Return the fields of the filter bar of events, as far as the visitor may use them."""

    def field(name: str, **more: Any) -> Field:
        value = getattr(chosen, name)
        words = None if value is None else _shown(name, value)
        label = _LABELS["exact_id" if name == "id" and not visit.may_change else name]
        return Field(name=name, label=label, value=value, words=words, **more)

    rare = [field("id", is_rare=True), field("video", hint="its id", is_rare=True)]
    if visit.may_change:
        rare.append(field("words", is_rare=True))
    return (
        field("exact_id", type="hidden"),
        field("person", type="hidden"),
        field("kind", hint=ANY_KIND, suggestions=KINDS),
        field("source", choices=same(visit.admin.rotations.sources)),
        field("sink", choices=same([route.sink for route in visit.admin.routes])),
        field("outcome", choices=same(get_args(Outcome))),
        field("since", hint=SINCE),
        field("until", hint=UNTIL),
        *rare,
        field("reason", is_rare=True),
    )


def selection_chips(visit: Visit, selection: Selection) -> list[Chip]:
    """Describe a stored selection; personal data is left out for those who may not see it."""
    return [
        Chip(
            label=_LABELS[name] if name in _LABELS else name.capitalize(),
            value=_shown(name, value) if visit.may_change or name not in PERSONAL_FIELDS else "…",
            name=name,
        )
        for name, value in _fields(selection).items()
        if name != "before"
    ]


def _fields(selection: Selection) -> dict[str, str]:
    """Name the fields of a selection as the form does."""
    fields = {}
    for name, value in asdict(selection).items():
        if value is not None:
            text = iso(value) if name.endswith("_ms") else str(value)
            fields[_FIELDS.get(name, name)] = text if name != "email" else "…"
    return fields


def form_fields(selection: Selection) -> dict[str, str]:
    """Return the form's fields of a selection that it can show, for a link to its events."""
    names = EventFilter.__struct_fields__
    return {name: value for name, value in _fields(selection).items() if name in names}


def _shown(name: str, value: str) -> str:
    return shortened(value, 11) if name == "person" else value
