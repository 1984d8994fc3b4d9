"""People: look one up by address, export their data, and erase it.

An address is in POSTed forms only, never in a URL; an erasure's report has none.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException

from relay.admin.api import people
from relay.admin.api.people import ErasureId, ExportPart, PersonQuery, PersonRecords
from relay.admin.operation import Nothing
from relay.admin.page.view import Action, Export, PageView, Section
from relay.admin.page.visit import ActionResult, Context, PageVisit
from relay.core.event import folded
from relay.store.erasures import COUNTS, Erasure
from relay.store.selection import Selection

EVENTS_SHOWN = 10
SEARCH_BUDGET_S = 0.2
ERASURES_SHOWN = 5
"""Earlier erasures of one person."""

NOT_AN_ADDRESS = "Type a whole e-mail address, such as ann@example.com."

Address = Annotated[str, Meta(max_length=400)]
LISTS = ("events", "unreadable", "mentions", "views", "watched")
"""Of an export, in the order in which its parts fill them."""


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """A typed address."""

    email: Address = ""

    def person(self) -> PersonQuery:
        """Return whom it names; raises HTTPException."""
        try:
            return msgspec.convert({"email": self.email.strip()}, PersonQuery)
        except msgspec.ValidationError:
            raise HTTPException(400, NOT_AN_ADDRESS) from None


class Confirmation(Lookup, frozen=True, kw_only=True):
    """An address that was looked up, and typed again."""

    typed: Address = ""


class DataKind(msgspec.Struct, frozen=True):
    """A kind of stored data, and how much of it there is."""

    name: str
    count: int
    description: str


class ExportDocument:
    """Writes an object of lists; its records come in the order of the lists."""

    def __init__(self) -> None:
        self._begun = 0

    def add(self, records: PersonRecords) -> bytes:
        """Return the text of some records."""
        text = []
        for number, name in enumerate(LISTS, start=1):
            for record in getattr(records, name):
                text.append(self._begin(number) if number > self._begun else b",")
                text += (b"\n", msgspec.json.format(msgspec.json.encode(record), indent=2))
        return b"".join(text)

    def end(self) -> bytes:
        """Return the text after the last record."""
        return self._begin(len(LISTS)) + b"\n]\n}\n"

    def _begin(self, number: int) -> bytes:
        """End the list that is open, and begin those up to a number."""
        text = b""
        for name in LISTS[self._begun : number]:
            text += (b"\n],\n" if self._begun else b"{\n") + f'"{name}": ['.encode()
            self._begun += 1
        return text


async def read_people(visit: PageVisit, _: Nothing) -> Context:
    """Read the form and the past erasures."""
    erasures = (await visit.run(people.list_erasures, Nothing())).erasures
    return {"erasures": erasures, "shown_max": people.ERASURES_MAX}


async def read_person(visit: PageVisit, lookup: Lookup) -> Context:
    """Count a person's stored data, and read their newest events."""
    person, store = lookup.person(), visit.admin.store
    erasure = await visit.run(people.count_person, Nothing(), person)
    digest = store.audience.person(person.email)
    result = await store.search.find(
        Selection(person=digest), visit.admin.routes, limit=EVENTS_SHOWN, budget_s=SEARCH_BUDGET_S
    )
    return {
        "email": person.email,
        "digest": digest,
        "erasure": erasure,
        "places": _places(erasure),
        "found": result,
        "earlier": await store.personal_data.erasures(limit=ERASURES_SHOWN, email=person.email),
    }


async def read_erasure(visit: PageVisit, path: ErasureId) -> Context:
    record = await visit.admin.store.personal_data.erasure(path.id)
    if record is None:
        raise HTTPException(404, f"There is no erasure {path.id}.")
    return {"record": record, "places": () if record.erasure is None else _places(record.erasure)}


def _places(erasure: Erasure) -> list[DataKind]:
    return [DataKind(name, getattr(erasure, name), text) for name, text in COUNTS.items()]


async def erase(visit: PageVisit, _: Nothing, form: Confirmation) -> ActionResult:
    """Erase the person whose address was typed twice."""
    person = form.person()
    if folded(form.typed.strip()) != folded(person.email):
        text = "The two addresses differ, so nothing was erased. Look the person up again."
        raise HTTPException(422, text)
    erasure = await visit.run(people.erase_person, Nothing(), person)
    return ActionResult(to=visit.url(f"/people/erasures/{erasure.id}"))


async def export(visit: PageVisit, lookup: Lookup) -> AsyncIterator[bytes]:
    """Yield one JSON object, with the lists of `relay export`, while its parts are read."""
    person, document = lookup.person(), ExportDocument()
    after = None
    while True:
        part = ExportPart(email=person.email, after=after)
        records = await visit.run(people.export_person, Nothing(), part)
        yield await asyncio.to_thread(document.add, records)
        after = records.next
        if after is None:
            break
    yield document.end()


SECTION = Section(
    name="People",
    path="/people",
    key="p",
    routes=(
        PageView(
            "/people", read_people, "People", "people.html", topics=("changes",), admin_only=True
        ),
        PageView("/people", read_person, "A person", "person.html", admin_only=True, is_form=True),
        PageView(
            "/people/erasures/{id:number}",
            read_erasure,
            "An erasure",
            "erasure.html",
            topics=("changes",),
            admin_only=True,
        ),
        Action("/people/erase", erase),
        Export("/people/export", export, "person.json"),
    ),
)
