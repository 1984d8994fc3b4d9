"""Sinks: their status, and an operator's actions on them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Text
from relay.admin.operation import Handler, Operation
from relay.admin.services import AdminServices
from relay.core.delivery import Result
from relay.core.errors import SinkError
from relay.core.retry import result_of
from relay.core.sink_status import SinkStatus
from relay.store import Backlog
from relay.store.operations import EventRecord
from relay.store.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkName:
    """One sink."""

    name: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkView:
    """One sink and its backlog."""

    condition: SinkStatus
    pending: int
    dead: int
    oldest_pending_ms: int | None
    """Receipt of the oldest pending event; replayed ones do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkList:
    """Configured sinks in their order, then removed ones that the store still knows."""

    sinks: Sequence[SinkView]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaybeEvent:
    """All of a sink's pending deliveries, or that of one event."""

    id: Text | None = None
    source: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OneEvent:
    """The delivery of one event; `source` is required if several sources have sent this id."""

    id: Text
    source: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryResult:
    """Number of deliveries that were due later and are due now."""

    sink: SinkView
    brought_forward: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardedDelivery:
    """A discarded delivery; if it was in flight, it may still arrive."""

    source: str
    id: str
    in_flight: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
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


class _Sinks:
    """Handlers of the operations on sinks."""

    def __init__(self, admin: AdminServices) -> None:
        self._admin = admin

    async def list_sinks(self, _: object) -> SinkList:
        backlogs = await self._admin.store.backlogs()
        statuses = self._admin.sinks.statuses()
        sinks = [_view(each, backlogs.get(name, Backlog())) for name, each in statuses.items()]
        gone = [
            _view(SinkStatus(name=name, type=None, state="not configured"), backlog)
            for name, backlog in sorted(backlogs.items())
            if name not in statuses and (backlog.pending or backlog.dead)
        ]
        return SinkList(sinks=sinks + gone)

    async def pause_sink(self, path: SinkName) -> SinkView:
        await self._admin.sinks.pause(self._known(path))
        return await self._view(path)

    async def resume_sink(self, path: SinkName) -> SinkView:
        await self._admin.sinks.resume(self._known(path))
        return await self._view(path)

    async def retry_sink(self, path: SinkName, chosen: MaybeEvent) -> RetryResult:
        sink, seq = self._known(path), None
        if chosen.id is not None:
            seq = (await self._pending(sink, OneEvent(id=chosen.id, source=chosen.source))).seq
        elif chosen.source is not None:
            raise HTTPException(409, "source is given without an id; give both, or neither.")
        count = await self._admin.sinks.retry(sink, seq)
        return RetryResult(sink=await self._view(path), brought_forward=count)

    async def discard_delivery(self, path: SinkName, chosen: OneEvent) -> DiscardedDelivery:
        if path.name not in await self._admin.store.backlogs():
            self._known(path)
        event = await self._pending(path.name, chosen)
        try:
            in_flight = await self._admin.sinks.discard(path.name, event.seq)
        except LookupError:
            raise _not_pending(path.name, chosen) from None
        return DiscardedDelivery(source=event.source, id=event.id, in_flight=in_flight)

    async def _pending(self, sink: str, chosen: OneEvent) -> EventRecord:
        """The event, which has a pending delivery to the sink."""
        selection = Selection(id=chosen.id, source=chosen.source, sink=sink, outcome="pending")
        events = await self._admin.operations.events(selection, (), limit=2)
        if not events:
            raise _not_pending(sink, chosen)
        if len(events) > 1:
            sources = " and ".join(sorted(each.source for each in events))
            raise HTTPException(
                409, f"several sources sent {chosen.id}: {sources}; give the source."
            )
        return events[0]

    async def test_sink(self, path: SinkName) -> CheckResult:
        try:
            found = await self._admin.sinks.check(self._known(path))
        except SinkError as error:
            return CheckResult(
                reached=False,
                found=None,
                reason=error.reason,
                status=error.status,
                result=result_of(error),
            )
        return CheckResult(reached=True, found=found, reason=None, status=None, result=None)

    def _known(self, path: SinkName) -> str:
        if path.name not in self._admin.sinks.statuses():
            raise HTTPException(404, f"There is no sink {path.name} in the config.")
        return path.name

    async def _view(self, path: SinkName) -> SinkView:
        backlogs = await self._admin.store.backlogs()
        status = self._admin.sinks.statuses()[path.name]
        return _view(status, backlogs.get(path.name, Backlog()))


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """Return the operations on sinks."""
    sinks = _Sinks(admin)

    def post(
        verb: str,
        summary: str,
        handler: Handler,
        response: type = SinkView,
        body: type | None = None,
    ) -> Operation:
        problems = {404: "There is no such sink in the config."}
        if body is not None:
            problems = {
                404: "There is no such sink, or no pending delivery of this event to it.",
                409: "Several sources have sent this id, or a source is given without an id.",
            }
        return Operation(
            method="POST",
            path=f"/api/v1/sinks/{{name}}/{verb}",
            summary=summary,
            handler=handler,
            parameters=SinkName,
            body=body,
            response=response,
            problems=problems,
        )

    return (
        Operation(
            method="GET",
            path="/api/v1/sinks",
            summary="Sinks with state and backlog.",
            handler=sinks.list_sinks,
            response=SinkList,
        ),
        post("pause", "Pause the sink; its backlog is kept until it is resumed.", sinks.pause_sink),
        post("resume", "Resume the sink.", sinks.resume_sink),
        post(
            "retry",
            "Make all pending deliveries, or one, due now, and probe the sink at once.",
            sinks.retry_sink,
            RetryResult,
            MaybeEvent,
        ),
        post(
            "discard",
            "Discard one pending delivery.",
            sinks.discard_delivery,
            DiscardedDelivery,
            OneEvent,
        ),
        replace(
            post(
                "test",
                "Check the sink's destination without sending an event.",
                sinks.test_sink,
                CheckResult,
            ),
            read_only=True,
        ),
    )


def _not_pending(sink: str, chosen: OneEvent) -> HTTPException:
    return HTTPException(404, f"No delivery of {chosen.id} to {sink} is pending.")


def _view(status: SinkStatus, backlog: Backlog) -> SinkView:
    return SinkView(
        condition=status,
        pending=backlog.pending,
        dead=backlog.dead,
        oldest_pending_ms=backlog.oldest_ms,
    )
