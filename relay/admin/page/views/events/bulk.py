"""Bulk changes: all that a filter matches is counted, confirmed, and replayed or discarded."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec.structs import replace
from starlette.exceptions import HTTPException

from relay.admin.api import dead_letters, replays
from relay.admin.api.events import EventList, Listing, list_events
from relay.admin.api.parameters import EventOrder, Filter, Text, selected, selected_dead
from relay.admin.operation import Nothing
from relay.admin.page.filter_bar import chips, fixed_chips
from relay.admin.page.filters import EventFilter, command, event_fields
from relay.admin.page.jobs import Change, DeliveryGroup, Job
from relay.admin.page.text.formats import iso
from relay.admin.page.view import Action, PageView
from relay.admin.page.visit import ActionResult, Context, Notice, PageVisit
from relay.core.units import number
from relay.store.events import EventRecord

SAMPLE = 5
SAMPLE_MS = 200
PARTS_SHOWN = 50

TYPED = "discard everything"
"""To be typed where no filter is given."""


class Bulk(EventFilter, frozen=True, kw_only=True):
    """A filter, and the only sink to change deliveries of, if the filter has none."""

    to: Text | None = None

    @property
    def event_filter(self) -> EventFilter:
        """The filter with this sink."""
        fields = {name: getattr(self, name) for name in EventFilter.__struct_fields__}
        return EventFilter(**{**fields, "sink": self.sink or self.to})


class JobId(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk change that is being prepared."""

    id: Text


class Typed(msgspec.Struct, frozen=True, kw_only=True):
    """The typed confirmation."""

    typed: str | None = None


def _reader(change: Change) -> Callable[..., Awaitable[Context]]:
    async def read(visit: PageVisit, chosen: EventFilter) -> Context:
        """Read the filter and a sample of what it matches."""
        wanted = _wanted(change, await chosen.filter(visit))
        return {
            "change": change,
            "chosen": chosen,
            "chips": chips(visit, event_fields(visit, chosen)),
            "sample": await _sample(visit, wanted),
            "sinks": [route.sink for route in visit.admin.routes],
            "command": _command(change, wanted),
        }

    return read


async def _sample(visit: PageVisit, wanted: Filter) -> Sequence[EventRecord]:
    page = wanted.extended(Listing, limit=SAMPLE, within_ms=SAMPLE_MS)
    result: EventList = await visit.run(list_events, page)
    return result.events


def _wanted(change: Change, chosen: Filter) -> Filter:
    """Return the filter for a change: only dead letters can be discarded."""
    if change == "replay":
        return chosen
    if chosen.outcome not in (None, "dead"):
        raise HTTPException(422, f"Only dead letters can be discarded, not {chosen.outcome} ones.")
    return replace(chosen, outcome="dead")


def _command(change: Change, wanted: Filter) -> str:
    if change == "replay":
        return command(wanted, "replay", bare=["--all"])
    chosen = replace(wanted, outcome=None)
    return command(chosen, "dead-letters", "discard", bare=["--all"])


def _beginner(change: Change) -> Callable[..., Awaitable[ActionResult]]:
    async def begin(visit: PageVisit, _: Nothing, bulk: Bulk) -> ActionResult:
        """Count the selected deliveries in the background."""
        chosen = bulk.event_filter
        wanted = _wanted(change, await chosen.filter(visit))
        check = selected if change == "replay" else selected_dead
        await check(visit.admin, wanted)
        newest = (await visit.admin.store.events.newest()).event
        fixed = replace(wanted, before=newest + 1)
        job = Job(
            change=change,
            fields=_absolute(chosen, fixed),
            chosen=fixed,
            is_everything=not chosen.given,
            sample=await _sample(visit, fixed),
        )
        count = count_replay if change == "replay" else count_dead_letters
        visit.jobs.run(job, lambda: count(visit, job))
        return ActionResult(to=_url(visit, job))

    return begin


def _url(visit: PageVisit, job: Job) -> str:
    return visit.url(f"/events/bulk/{job.identifier}")


def _absolute(chosen: EventFilter, fixed: Filter) -> dict[str, str]:
    """Return the form's fields with times that stay the same."""
    times = {"since": fixed.since_ms, "until": fixed.until_ms}
    return {**chosen.given, **{name: iso(ms) for name, ms in times.items() if ms is not None}}


async def read_job(visit: PageVisit, path: JobId) -> Context:
    """Read the state of a bulk change."""
    # A copy, because it may go on while a thread renders it.
    job = replace(visit.jobs.find(path.id))
    chosen = EventFilter(**job.fields)  # type: ignore[arg-type]
    parts = sorted(job.parts, key=lambda part: -part.count)
    return {
        "job": job,
        "chips": fixed_chips(event_fields(visit, chosen)),
        "parts": parts[:PARTS_SHOWN],
        "more_parts": len(parts) - PARTS_SHOWN,
        "typed": TYPED,
        "command": _command(job.change, replace(job.chosen, before=None)),
    }


async def stop(visit: PageVisit, path: JobId, _: Nothing) -> ActionResult:
    """Stop counting or discarding."""
    job = visit.jobs.find(path.id)
    visit.jobs.stop(job)
    return ActionResult(to=_url(visit, job))


async def confirm(visit: PageVisit, path: JobId, form: Typed) -> ActionResult:
    """Make the change that was counted."""
    job = visit.jobs.find(path.id)
    here = _url(visit, job)
    if job.state != "counted" or not job.count:
        return ActionResult(to=here)
    if job.change == "replay":
        return await begin_replay(visit, job)
    if job.is_everything and (form.typed or "").strip().lower() != TYPED:
        text = f"Type “{TYPED}” to discard all dead letters; nothing was discarded."
        return ActionResult(to=here, notice=Notice(text=text, tone="bad"))
    visit.jobs.run(job, lambda: discard(visit, job))
    job.state, job.share = "changing", 0.0
    return ActionResult(to=here)


async def count_replay(visit: PageVisit, job: Job) -> None:
    """Count what a replay would deliver."""

    def progress(share: float, count: int) -> None:
        job.share, job.count = share, count
        visit.jobs.progressed()

    estimate = await visit.run(replays.count_replay, Nothing(), job.chosen, progress=progress)
    job.count, job.nothing = estimate.total, estimate.nothing
    job.parts = [
        DeliveryGroup(sink=each.sink, kind=each.kind, reason=each.reason, count=each.count)
        for each in estimate.shares
    ]
    visit.jobs.end(job, "counted")


async def count_dead_letters(visit: PageVisit, job: Job) -> None:
    """Count what would be discarded."""
    job.share = None
    reasons = (await visit.run(dead_letters.count_dead_letters, job.chosen)).reasons
    job.parts = [
        DeliveryGroup(sink=each.sink, kind=None, reason=each.reason, count=each.count)
        for each in reasons
    ]
    job.count = sum(part.count for part in job.parts)
    job.nothing = None if job.count else "no dead letter matches"
    visit.jobs.end(job, "counted")


async def begin_replay(visit: PageVisit, job: Job) -> ActionResult:
    """Start the replay that was counted, and lead to it."""
    # At once, so that a second click starts no second replay.
    job.state = "changing"
    try:
        order = job.chosen.extended(EventOrder, all=True)
        begun = await visit.run(replays.begin_replay, Nothing(), order, counted=job.count)
    except BaseException:
        job.state = "counted"
        raise
    job.replay = begun.id
    visit.jobs.end(job, "done")
    text = f"Replay {begun.id} of {number(begun.total)} deliveries has begun."
    return ActionResult(to=visit.url(f"/replays/{begun.id}"), notice=Notice(text=text))


async def discard(visit: PageVisit, job: Job) -> None:
    """Discard the counted dead letters, until stopped."""

    def goes_on(count: int) -> bool:
        job.changed, job.share = count, min(1.0, count / job.count)
        visit.jobs.progressed()
        return not job.is_stopping

    order = job.chosen.extended(dead_letters.Discard, all=True)
    result = await visit.run(dead_letters.discard_dead_letters, Nothing(), order, goes_on=goes_on)
    job.changed = result.discarded
    visit.jobs.end(job, "stopped" if job.is_stopping else "done")


ROUTES = (
    PageView("/events/replay", _reader("replay"), "Replay", "bulk.html", admin_only=True),
    PageView("/events/discard", _reader("discard"), "Discard", "bulk.html", admin_only=True),
    PageView(
        "/events/bulk/{id}",
        read_job,
        "Bulk change",
        "job.html",
        topics=("changes",),
        admin_only=True,
    ),
    Action("/events/replay", _beginner("replay")),
    Action("/events/discard", _beginner("discard")),
    Action("/events/bulk/{id}/stop", stop),
    Action("/events/bulk/{id}/confirm", confirm),
)
