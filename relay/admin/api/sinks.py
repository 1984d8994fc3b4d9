"""Sinks: their status, and an operator's actions on them."""

from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Text, unknown
from relay.admin.operation import Nothing, Operation
from relay.admin.services import AdminServices
from relay.core import sample_events
from relay.core.delivery import Result
from relay.core.errors import SinkError
from relay.core.event import KINDS, LEAD_CAPTURED, Event
from relay.core.retry import result_of
from relay.core.sink_status import SinkStatus
from relay.store import Backlog
from relay.store.events import EventRecord
from relay.store.selection import Selection


class SinkName(msgspec.Struct, frozen=True, kw_only=True):
    """One sink."""

    name: Text


class SinkView(msgspec.Struct, frozen=True, kw_only=True):
    """One sink and its backlog."""

    condition: SinkStatus
    pending: int
    dead: int
    oldest_pending_ms: int | None
    """Receipt of the oldest pending event; replayed ones do not count."""


class SinkList(msgspec.Struct, frozen=True, kw_only=True):
    """Configured sinks in their order, then removed ones that the store still knows."""

    sinks: Sequence[SinkView]


class MaybeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """All of a sink's pending deliveries, or that of one event."""

    id: Text | None = None
    source: Text | None = None


class OneEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The delivery of one event; `source` is required if several sources have sent this id."""

    id: Text
    source: Text | None = None


class RetryResult(msgspec.Struct, frozen=True, kw_only=True):
    """Number of deliveries that were due later and are due now."""

    sink: SinkView
    brought_forward: int


class DiscardedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A discarded delivery; if it was in flight, it may still arrive."""

    source: str
    id: str
    in_flight: bool


class SampleKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of event; by default the first that the sink takes, leads before all."""

    event: Text | None = None


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the destination can be reached and would take events."""

    reached: bool
    found: str | None
    """Details of its answer."""
    reason: str | None
    """Reason why it was not reached, or would not take an event."""
    status: int | None
    """The destination's own status code."""
    result: Result | None
    """Result that an event's attempt would have."""


async def list_sinks(admin: AdminServices, _: Nothing) -> SinkList:
    """Sinks with state and backlog."""
    backlogs = await admin.store.backlogs()
    statuses = admin.sinks.statuses()
    sinks = [_view(each, backlogs.get(name, Backlog())) for name, each in statuses.items()]
    gone = [
        _view(SinkStatus(name=name, type=None, state="not configured"), backlog)
        for name, backlog in sorted(backlogs.items())
        if name not in statuses and (backlog.pending or backlog.dead)
    ]
    return SinkList(sinks=sinks + gone)


async def pause_sink(admin: AdminServices, path: SinkName) -> SinkView:
    """Pause the sink; its backlog is kept until it is resumed."""
    await admin.sinks.pause(_known(admin, path))
    return await _sink(admin, path)


async def resume_sink(admin: AdminServices, path: SinkName) -> SinkView:
    """Resume the sink."""
    await admin.sinks.resume(_known(admin, path))
    return await _sink(admin, path)


async def retry_sink(admin: AdminServices, path: SinkName, chosen: MaybeEvent) -> RetryResult:
    """Make all pending deliveries, or one, due now, and probe the sink at once."""
    sink, seq = _known(admin, path), None
    if chosen.id is not None:
        seq = (await _pending(admin, sink, chosen.id, chosen.source)).seq
    elif chosen.source is not None:
        raise HTTPException(409, "source is given without an id; give both, or neither.")
    count = await admin.sinks.retry(sink, seq)
    return RetryResult(sink=await _sink(admin, path), brought_forward=count)


async def discard_delivery(
    admin: AdminServices, path: SinkName, chosen: OneEvent
) -> DiscardedDelivery:
    """Discard one pending delivery."""
    if path.name not in await admin.store.backlogs():
        _known(admin, path)
    event = await _pending(admin, path.name, chosen.id, chosen.source)
    try:
        in_flight = await admin.sinks.discard(path.name, event.seq)
    except LookupError:
        raise _not_pending(path.name, chosen.id) from None
    return DiscardedDelivery(source=event.source, id=event.id, in_flight=in_flight)


async def test_sink(admin: AdminServices, path: SinkName) -> CheckResult:
    """Check the sink's destination without sending an event."""
    try:
        found = await admin.sinks.check(_known(admin, path))
    except SinkError as error:
        return _failed(admin, path, error)
    return CheckResult(reached=True, found=found, reason=None, status=None, result=None)


async def send_sample(admin: AdminServices, path: SinkName, chosen: SampleKind) -> CheckResult:
    """Send a marked sample event; it is not stored, and neither counted nor tried again."""
    event = _sample(admin, _known(admin, path), chosen.event)
    try:
        response = await admin.sinks.send_apart(path.name, event)
    except SinkError as error:
        return _failed(admin, path, error)
    code = "" if response.status is None else f"{response.status} to "
    found = f"{code}a sample of {event.kind}, {event.id}"
    return CheckResult(
        reached=True, found=found, reason=None, status=response.status, result="delivered"
    )


def _failed(admin: AdminServices, path: SinkName, error: SinkError) -> CheckResult:
    status = admin.sinks.statuses().get(path.name)
    refuses_all = status is not None and status.refusals is not None
    return CheckResult(
        reached=False,
        found=None,
        reason=error.reason,
        status=error.status,
        result=result_of(error, refuses_all=refuses_all),
    )


def _sample(admin: AdminServices, name: str, kind: str | None) -> Event:
    """Return a sample of a kind, or of the first one that the sink takes."""
    config, now_ms = admin.config(), admin.clock.now_ms()
    sinks = {sink.name: sink for sink in config.sinks}
    if name not in sinks:  # a reload has removed it meanwhile
        raise unknown("sink", name, list(sinks))
    make = partial(
        sample_events.marked,
        source=(sinks[name].sources or (config.sources[0].name,))[0],
        event_id=f"evt_test_{now_ms}",
        at_ms=now_ms,
    )
    if kind is not None:
        if kind not in KINDS:
            raise unknown("event", kind, KINDS)
        return make(kind)
    route = next(route for route in config.routes if route.sink == name)
    for sample in map(make, (LEAD_CAPTURED, *KINDS)):
        if route.evaluate(sample).outcome == "takes":
            return sample
    raise HTTPException(409, f"{name} takes no sample of any kind; name the kind to send.")


async def _pending(admin: AdminServices, sink: str, id_: str, source: str | None) -> EventRecord:
    """Return the event with this id, which has a pending delivery to the sink."""
    selection = Selection(id=id_, source=source, sink=sink, outcome="pending")
    events = await admin.store.events.page(selection, (), limit=2)
    if not events:
        raise _not_pending(sink, id_)
    if len(events) > 1:
        sources = " and ".join(sorted(each.source for each in events))
        raise HTTPException(409, f"several sources sent {id_}: {sources}; give the source.")
    return events[0]


def _not_pending(sink: str, id_: str) -> HTTPException:
    return HTTPException(404, f"No delivery of {id_} to {sink} is pending.")


def _known(admin: AdminServices, path: SinkName) -> str:
    known = admin.sinks.statuses()
    if path.name not in known:
        raise unknown("sink", path.name, list(known))
    return path.name


async def _sink(admin: AdminServices, path: SinkName) -> SinkView:
    backlogs = await admin.store.backlogs()
    return _view(admin.sinks.statuses()[path.name], backlogs.get(path.name, Backlog()))


def _view(status: SinkStatus, backlog: Backlog) -> SinkView:
    return SinkView(
        condition=status,
        pending=backlog.pending,
        dead=backlog.dead,
        oldest_pending_ms=backlog.oldest_ms,
    )


_URL = "/api/v1/sinks/{name}"
_NO_SINK = {404: "There is no such sink in the config."}
_NO_SAMPLE = {
    **_NO_SINK,
    409: "The sink takes no sample of any kind, and none is named.",
}
_NO_DELIVERY = {
    404: "There is no such sink, or no pending delivery of this event to it.",
    409: "Several sources have sent this id, or a source is given without an id.",
}

OPERATIONS = (
    Operation("GET", "/api/v1/sinks", list_sinks),
    Operation("POST", f"{_URL}/pause", pause_sink, _NO_SINK),
    Operation("POST", f"{_URL}/resume", resume_sink, _NO_SINK),
    Operation("POST", f"{_URL}/retry", retry_sink, _NO_DELIVERY),
    Operation("POST", f"{_URL}/discard", discard_delivery, _NO_DELIVERY),
    Operation("POST", f"{_URL}/test", test_sink, _NO_SINK, audited=False),
    Operation("POST", f"{_URL}/sample", send_sample, _NO_SAMPLE),
)
