"""The filter of events as a form and as a command: its fields, and what they select.

A person stands in it as the store's digest, never as an address.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
import orjson
from msgspec.structs import asdict
from starlette.exceptions import HTTPException

from relay.admin.api.dead_letters import count_dead_letters
from relay.admin.api.parameters import Filter, Person, Text, Words
from relay.admin.page.filter_bar import ANY_KIND, SINCE, UNTIL, Chip, Field, Time, moment, same
from relay.admin.page.text.formats import iso, shortened
from relay.admin.page.visit import PERSONAL_FIELDS, PageVisit
from relay.core.addresses import ADDRESS
from relay.core.event import KINDS
from relay.store.selection import Outcome, Selection

REASON_MAX = 300
"""Characters of a reason that stand in a URL; as a filter, a part of it selects as well."""
_OPTIONS = {"kind": "event"}
"""Names of the command's options that are not those of the API."""


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

    async def filter(self, visit: PageVisit) -> Filter:
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


def event_fields(visit: PageVisit, chosen: EventFilter) -> Sequence[Field]:
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
        field("source", choices=same(visit.admin.sources)),
        field("sink", choices=same([route.sink for route in visit.admin.routes])),
        field("outcome", choices=same(get_args(Outcome))),
        field("since", hint=SINCE),
        field("until", hint=UNTIL),
        *rare,
        field("reason", is_rare=True),
    )


def selection_chips(visit: PageVisit, selection: Selection) -> list[Chip]:
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


def shown_part(reason: str) -> str | None:
    """Return the beginning of a reason without any address, which must not stand in a URL."""
    match = ADDRESS.search(reason)
    return reason[: match.start() if match else REASON_MAX][:REASON_MAX].strip() or None


async def check_reason(visit: PageVisit, reason: str | None) -> None:
    """Refuse a viewer's filter by what no cause shows; raises HTTPException.

    Letter by letter, a viewer could spell out an address that is hidden in a reason.
    """
    if reason is None or visit.may_change:
        return
    reasons = (await visit.run(count_dead_letters, Filter())).reasons
    if not any(reason in visit.text(each.reason) for each in reasons):
        raise HTTPException(403, "No cause of dead letters that viewers see contains this.")


def command(chosen: Filter, *words: str, bare: Sequence[str] = ()) -> str:
    """Return a command with the filter, or with `bare` if there is none."""
    return shlex.join(["relay", *words, *(_options(chosen) or bare)])


def _options(chosen: Filter) -> Sequence[str]:
    words = []
    for name, value in asdict(chosen).items():
        if value is not None:
            option = _OPTIONS.get(name, name.removesuffix("_ms")).replace("_", "-")
            text = iso(value) if name.endswith("_ms") else str(value)
            # A value that begins with a hyphen would be taken for an option.
            words += [f"--{option}={text}"] if text.startswith("-") else [f"--{option}", text]
    return words


def api_request(visit: PageVisit, path: str, body: Any = None, **query: object) -> str:
    """Return a command that calls the API; a body makes it a POST."""
    url = shlex.quote(visit.origin + visit.url(f"/api/v1{path}", **query))
    data = "" if body is None else f" -d {shlex.quote(orjson.dumps(body).decode())}"
    return f'curl -s {url}{data} -H "Authorization: Bearer $RELAY_ADMIN_TOKEN"'
