"""Dead letters, by cause and one by one, with the unreadable requests."""

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import blake2b

import msgspec
from msgspec.structs import asdict

from relay.admin.api.dead_letters import (
    Discard,
    count_dead_letters,
    discard_dead_letters,
    list_dead_letters,
)
from relay.admin.api.parameters import EventOrder, Filter, Number, PageQuery, Text
from relay.admin.api.replays import begin_replay
from relay.admin.api.unreadable import UnreadableFilter, UnreadablePage, count_unreadable
from relay.admin.operation import Nothing
from relay.admin.page.downloads import Rows
from relay.admin.page.filter_bar import ANY_KIND, Field, filter_bar, same
from relay.admin.page.filters import check_reason, command, shown_part
from relay.admin.page.lists import unpaged
from relay.admin.page.text.formats import iso
from relay.admin.page.view import Action, CsvTable, PageView, Section
from relay.admin.page.views.dead_letters import unreadable
from relay.admin.page.visit import ActionResult, Context, Notice, PageVisit
from relay.core.event import KINDS
from relay.store.dead_letters import DeadLetter, Reason

UNREADABLE_SHOWN = 5
PAGE_ROWS = 50
CAUSES_SHOWN = 50

_KEY = secrets.token_bytes(16)
"""Without it, a viewer could guess the address in a reason by its digest."""


class Cause(msgspec.Struct, frozen=True):
    """A group of dead letters."""

    reason: Reason
    chosen: Mapping[str, str | None] | None
    """The filter that selects them; None if no filter does."""

    @property
    def key(self) -> str:
        """The same in the next view of this group, whatever its place among the others."""
        text = f"{self.reason.sink}\0{self.reason.reason}".encode(errors="replace")
        return blake2b(text, key=_KEY, digest_size=6).hexdigest()


def cause_of(reason: Reason, **more: str | None) -> Cause:
    """Find the filter of a group, with further fields."""
    part = shown_part(reason.reason or "")
    if part is None:
        return Cause(reason, None)
    return Cause(reason, {"sink": reason.sink, "outcome": "dead", "reason": part, **more})


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of the dead letters."""

    sink: Text | None = None
    reason: Text | None = None
    kind: Text | None = None
    source: Text | None = None
    before: Number | None = None

    @property
    def filter(self) -> Filter:
        """The filter over all pages."""
        return Filter(sink=self.sink, reason=self.reason, kind=self.kind, source=self.source)

    @property
    def page(self) -> PageQuery:
        return self.filter.extended(PageQuery, before=self.before, limit=PAGE_ROWS)


class OneDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter."""

    id: Text
    source: Text
    sink: Text


async def read_dead_letters(visit: PageVisit, chosen: DeadLetterFilter) -> Context:
    """Read the causes and a page of dead letters."""
    await _check(visit, chosen)
    shown = await visit.page(
        list_dead_letters, chosen.page, rows="dead_letters", position="seq", name="letters"
    )
    reasons = (await visit.run(count_dead_letters, chosen.filter)).reasons
    total = sum(reason.count for reason in reasons)
    newest = await unreadable.read_requests(visit, UnreadablePage(limit=UNREADABLE_SHOWN))
    return {
        "filters": filter_bar(visit, await _fields(visit, chosen)),
        "before": chosen.before,
        "total": total,
        **({} if any(asdict(chosen.filter).values()) else {"dead": total}),
        "causes": [
            cause_of(each, kind=chosen.kind, source=chosen.source)
            for each in reasons[:CAUSES_SHOWN]
        ],
        "causes_total": len(reasons),
        "causes_list": unpaged("causes"),
        "letters": shown.response.dead_letters,
        "letters_list": shown.attributes,
        "next": shown.response.next,
        "csv": visit.url("/dead-letters.csv", **asdict(chosen.filter)),
        "command": f"{command(chosen.filter, 'dead-letters', 'replay', bare=['--all'])} --dry-run",
        "unreadable": newest.response.unreadable,
        "requests": newest.attributes,
        "unreadable_reasons": (await visit.run(count_unreadable, UnreadableFilter())).reasons,
    }


async def _check(visit: PageVisit, chosen: DeadLetterFilter) -> None:
    """Raise HTTPException if a viewer filters by a value that viewers may not see."""
    visit.check_filter(*asdict(chosen.filter).values())
    visit.check_kind(chosen.kind)
    await check_reason(visit, chosen.reason)


async def _fields(visit: PageVisit, chosen: DeadLetterFilter) -> Sequence[Field]:
    sinks, sources = await _sinks(visit), visit.admin.sources
    return (
        Field(name="sink", label="Sink", value=chosen.sink, choices=same(sinks)),
        Field(name="reason", label="Reason contains", value=chosen.reason),
        Field(name="kind", label="Kind", value=chosen.kind, hint=ANY_KIND, suggestions=KINDS),
        Field(name="source", label="Source", value=chosen.source, choices=same(sources)),
    )


async def _sinks(visit: PageVisit) -> list[str]:
    """Return the sinks of the config, then removed ones with dead letters."""
    configured = list(visit.admin.sinks.statuses())
    backlogs = await visit.admin.store.backlogs()
    return configured + [
        name for name in sorted(backlogs) if name not in configured and backlogs[name].dead
    ]


async def read_table(visit: PageVisit, chosen: DeadLetterFilter) -> AsyncIterator[Rows]:
    """Read all dead letters that a filter selects."""
    await _check(visit, chosen)
    heads = [("died", "received", "sink", "source", "kind", "id", "attempts", "reason", "mark")]
    async for page in visit.pages(list_dead_letters, chosen.page):
        yield [*heads, *(_row(visit, letter) for letter in page.dead_letters)]
        heads = []


def _row(visit: PageVisit, letter: DeadLetter) -> Sequence[object]:
    died = "" if letter.settled_ms is None else iso(letter.settled_ms)
    names = (letter.sink, letter.source, visit.text(letter.kind), visit.text(letter.id))
    mark = "reconstructed" if letter.reconstructed else ""
    reason = visit.text(letter.reason)
    return (died, iso(letter.received_ms), *names, letter.attempts, reason, mark)


async def replay_one(visit: PageVisit, _: Nothing, chosen: OneDelivery) -> ActionResult:
    """Deliver one dead letter again."""
    order = EventOrder(id=chosen.id, source=chosen.source, sink=chosen.sink, outcome="dead")
    await visit.run(begin_replay, Nothing(), order)
    return ActionResult(notice=Notice(text=f"{chosen.id} goes to {chosen.sink} again."))


async def discard_one(visit: PageVisit, _: Nothing, chosen: OneDelivery) -> ActionResult:
    order = Discard(id=chosen.id, source=chosen.source, sink=chosen.sink)
    result = await visit.run(discard_dead_letters, Nothing(), order)
    if not result.discarded:
        text = f"{chosen.id} to {chosen.sink} is no dead letter any more."
        return ActionResult(notice=Notice(text=text, tone="warn"))
    text = (
        f"{chosen.id} to {chosen.sink} is discarded. A replay of the event delivers it after all."
    )
    return ActionResult(notice=Notice(text=text))


SECTION = Section(
    name="Dead letters",
    path="/dead-letters",
    key="d",
    routes=(
        PageView(
            "/dead-letters",
            read_dead_letters,
            "Dead letters",
            "dead_letters.html",
            topics=("events", "deliveries", "changes"),
        ),
        Action("/dead-letters/replay", replay_one),
        Action("/dead-letters/discard", discard_one),
        CsvTable("/dead-letters.csv", read_table, "dead-letters.csv"),
        *unreadable.ROUTES,
    ),
)
