"""Dead letters, by cause and one by one, with the unreadable requests."""

from collections.abc import AsyncIterator, Sequence
from functools import partial

import msgspec
from msgspec.structs import asdict

from relay.admin.api.dead_letters import (
    Discard,
    count_dead_letters,
    discard_dead_letters,
    list_dead_letters,
)
from relay.admin.api.parameters import Filter, Number, Order, Page, Text
from relay.admin.api.replays import begin_replay
from relay.admin.api.unreadable import UnreadableFilter, UnreadablePage, count_unreadable
from relay.admin.operation import Nothing
from relay.admin.page.commands import command
from relay.admin.page.downloads import Rows
from relay.admin.page.filter_bar import ANY_KIND, Field, filter_bar, same
from relay.admin.page.lists import ListReader, unpaged
from relay.admin.page.reasons import check_reason
from relay.admin.page.text.formats import iso
from relay.admin.page.view import Action, Section, Table, View
from relay.admin.page.views.dead_letters import unreadable
from relay.admin.page.views.dead_letters.causes import cause_of
from relay.admin.page.visit import Context, Done, Notice, Visit
from relay.core.event import KINDS
from relay.store.dead_letters import DeadLetter

UNREADABLE_SHOWN = 5
PAGE_ROWS = 50
CAUSES_SHOWN = 50


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
    def page(self) -> Page:
        return self.filter.extended(Page, before=self.before, limit=PAGE_ROWS)


class OneDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter."""

    id: Text
    source: Text
    sink: Text


async def read_dead_letters(visit: Visit, chosen: DeadLetterFilter) -> Context:
    """Read the causes and a page of dead letters."""
    await _check(visit, chosen)
    reader = ListReader(partial(visit.run, list_dead_letters), "dead_letters", "seq")
    shown = await reader.page(visit.held, "letters", chosen.page)
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


async def _check(visit: Visit, chosen: DeadLetterFilter) -> None:
    """Raise HTTPException if a viewer filters by a value that viewers may not see."""
    visit.check_filter(*asdict(chosen.filter).values())
    visit.check_kind(chosen.kind)
    await check_reason(visit, chosen.reason)


async def _fields(visit: Visit, chosen: DeadLetterFilter) -> Sequence[Field]:
    sinks, sources = await _sinks(visit), visit.admin.rotations.sources
    return (
        Field(name="sink", label="Sink", value=chosen.sink, choices=same(sinks)),
        Field(name="reason", label="Reason contains", value=chosen.reason),
        Field(name="kind", label="Kind", value=chosen.kind, hint=ANY_KIND, suggestions=KINDS),
        Field(name="source", label="Source", value=chosen.source, choices=same(sources)),
    )


async def _sinks(visit: Visit) -> list[str]:
    """Return the sinks of the config, then removed ones with dead letters."""
    configured = list(visit.admin.sinks.statuses())
    backlogs = await visit.admin.store.backlogs()
    return configured + [
        name for name in sorted(backlogs) if name not in configured and backlogs[name].dead
    ]


async def read_table(visit: Visit, chosen: DeadLetterFilter) -> AsyncIterator[Rows]:
    """Read all dead letters that a filter selects."""
    await _check(visit, chosen)
    heads = [("died", "received", "sink", "source", "kind", "id", "attempts", "reason", "mark")]
    async for page in visit.pages(list_dead_letters, chosen.page):
        yield [*heads, *(_row(visit, letter) for letter in page.dead_letters)]
        heads = []


def _row(visit: Visit, letter: DeadLetter) -> Sequence[object]:
    died = "" if letter.settled_ms is None else iso(letter.settled_ms)
    names = (letter.sink, letter.source, visit.text(letter.kind), visit.text(letter.id))
    mark = "reconstructed" if letter.reconstructed else ""
    reason = visit.text(letter.reason)
    return (died, iso(letter.received_ms), *names, letter.attempts, reason, mark)


async def replay_one(visit: Visit, _: Nothing, chosen: OneDelivery) -> Done:
    """Deliver one dead letter again."""
    order = Order(id=chosen.id, source=chosen.source, sink=chosen.sink, outcome="dead")
    await visit.run(begin_replay, Nothing(), order)
    return Done(notice=Notice(text=f"{chosen.id} goes to {chosen.sink} again."))


async def discard_one(visit: Visit, _: Nothing, chosen: OneDelivery) -> Done:
    order = Discard(id=chosen.id, source=chosen.source, sink=chosen.sink)
    result = await visit.run(discard_dead_letters, Nothing(), order)
    if not result.discarded:
        text = f"{chosen.id} to {chosen.sink} is no dead letter any more."
        return Done(notice=Notice(text=text, tone="warn"))
    text = (
        f"{chosen.id} to {chosen.sink} is discarded. A replay of the event delivers it after all."
    )
    return Done(notice=Notice(text=text))


SECTION = Section(
    name="Dead letters",
    path="/dead-letters",
    key="d",
    views=(
        View(
            path="/dead-letters",
            title="Dead letters",
            template="dead_letters.html",
            read=read_dead_letters,
            topics=("events", "deliveries", "changes"),
        ),
        *unreadable.VIEWS,
    ),
    actions=(
        Action(path="/dead-letters/replay", perform=replay_one),
        Action(path="/dead-letters/discard", perform=discard_one),
        *unreadable.ACTIONS,
    ),
    tables=(Table(path="/dead-letters.csv", file="dead-letters.csv", read=read_table),),
)
