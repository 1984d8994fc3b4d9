"""Sinks: their states and backlogs, and the actions on one."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from relay.admin.api import sinks as api
from relay.admin.api.status import show_status
from relay.admin.facts import SinkFacts, total_dead
from relay.admin.operation import Nothing
from relay.admin.page.live import EVERY_TOPIC
from relay.admin.page.view import Action, PageView, Section
from relay.admin.page.views.sinks import sink, trial
from relay.admin.page.views.sinks.sink import Strip, strip_of
from relay.admin.page.visit import ActionResult, Context, Notice, PageVisit
from relay.core.errors import StoreError
from relay.core.minutes import DAY_MS
from relay.core.sink_status import REASON_WORDS, SinkStatus, outlook_of, stands_still
from relay.core.units import number
from relay.store.sink_states import StateSpan


class SinkRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sink of the table."""

    name: str
    status: SinkStatus
    why: str
    """The last error, if it is the cause of the state."""
    last_error: str
    """Another one of the last day."""
    pending: int | None
    outlook: str
    """When nothing waits any longer, in words."""
    oldest_ms: int | None
    dead: int | None
    day: Strip
    waits_for: str | None
    stands_still: bool


async def sink_rows(visit: PageVisit, sinks: Sequence[SinkFacts]) -> list[SinkRow]:
    """Return the table's rows, with each sink's states over the last day."""
    since_ms = visit.now_ms - DAY_MS
    spans: Mapping[str, Sequence[StateSpan]] = {}
    # The verdict says that the store cannot be read.
    with suppress(StoreError):
        spans = await visit.admin.store.sink_states.since(since_ms)
    return [_row(each, spans.get(each.name, ()), visit.now_ms) for each in sinks]


def _row(sink: SinkFacts, spans: Sequence[StateSpan], now_ms: int) -> SinkRow:
    status = sink.status()
    still_ms = status.stands_still_since_ms
    is_cause = status.state in ("parked", "throttled")
    is_recent = (status.last_error_ms or 0) > now_ms - DAY_MS
    return SinkRow(
        name=sink.name,
        status=status,
        why=(status.last_error or "") if is_cause else "",
        last_error=(status.last_error or "") if is_recent and not is_cause else "",
        pending=sink.pending,
        outlook=outlook_of(
            status.state, still_ms, status.flow, pending=sink.pending, now_ms=now_ms
        ),
        oldest_ms=sink.oldest_pending_ms,
        dead=sink.dead,
        day=strip_of(spans, DAY_MS, now_ms),
        waits_for=REASON_WORDS[status.waits_for] if status.waits_for else None,
        stands_still=stands_still(still_ms, now_ms=now_ms),
    )


async def read_sinks(visit: PageVisit, _: Nothing) -> Context:
    """Read the table of all sinks."""
    status = await visit.run(show_status, Nothing())
    return {"sinks": await sink_rows(visit, status.sinks), "dead": total_dead(status.sinks)}


async def test(visit: PageVisit, path: api.SinkName, _: Nothing) -> ActionResult:
    """Check the destination without sending an event."""
    result = await visit.run(api.test_sink, path)
    if result.reached:
        text = f"{path.name} can be reached{f': {result.found}' if result.found else ''}."
        return ActionResult(notice=Notice(text=text))
    text = f"{path.name} cannot take events: {result.reason}."
    return ActionResult(notice=Notice(text=text, tone="bad"))


async def pause(visit: PageVisit, path: api.SinkName, _: Nothing) -> ActionResult:
    await visit.run(api.pause_sink, path)
    text = f"{path.name} is paused: its events wait until you resume it."
    return ActionResult(notice=Notice(text=text, tone="warn"))


async def resume(visit: PageVisit, path: api.SinkName, _: Nothing) -> ActionResult:
    await visit.run(api.resume_sink, path)
    return ActionResult(notice=Notice(text=f"{path.name} delivers again."))


async def retry(visit: PageVisit, path: api.SinkName, chosen: api.MaybeEvent) -> ActionResult:
    """Make pending deliveries due now."""
    result = await visit.run(api.retry_sink, path, chosen)
    count, late = result.brought_forward, ""
    if count:
        which = "delivery that was" if count == 1 else "deliveries that were"
        late = f", with {number(count)} {which} due later"
    return ActionResult(notice=Notice(text=f"{path.name} is tried now{late}."))


SECTION = Section(
    name="Sinks",
    path="/sinks",
    key="s",
    routes=(
        PageView("/sinks", read_sinks, "Sinks", "sinks.html", topics=EVERY_TOPIC),
        Action("/sinks/{name}/test", test),
        Action("/sinks/{name}/pause", pause),
        Action("/sinks/{name}/resume", resume),
        Action("/sinks/{name}/retry", retry),
        sink.ROUTE,
        *trial.ROUTES,
    ),
)
