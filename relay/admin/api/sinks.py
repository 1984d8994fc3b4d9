"""The sinks: how they are doing, and the operator's hand on them."""

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
class Which:
    """One sink."""

    name: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkView:
    """One sink and what waits for it."""

    condition: SinkStatus
    pending: int
    dead: int
    oldest_pending_ms: int | None
    """When the oldest event was received that waits for it; replayed ones do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkList:
    """In the order of the config; then those that it no longer has, and the store still knows."""

    sinks: Sequence[SinkView]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaybeOne:
    """All of a sink's pending deliveries, or that of one event."""

    id: Text | None = None
    source: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class One:
    """The delivery of one event; `source` where more than one has sent an event of this id."""

    id: Text
    source: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """How many deliveries were due later and are due now."""

    sink: SinkView
    brought_forward: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """A delivery that was pending; one that was in flight may arrive all the same."""

    source: str
    id: str
    in_flight: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Whether the far end can be reached and nothing in its answer speaks against events."""

    reached: bool
    found: str | None
    """More of its answer."""
    reason: str | None
    """Why it was not reached, or would not take an event."""
    status: int | None
    """The far end's own code for this."""
    result: Result | None
    """What an event's attempt would be then."""


class _Sinks:
    """What can be asked of sinks, and done to them."""

    def __init__(self, admin: AdminServices) -> None:
        self._admin = admin

    async def list_sinks(self, _: object) -> SinkList:
        backlogs = await self._admin.store.backlogs()
        conditions = self._admin.sinks.conditions()
        sinks = [_view(each, backlogs.get(name, Backlog())) for name, each in conditions.items()]
        gone = [
            _view(SinkStatus(name=name, type=None, state="not configured"), backlog)
            for name, backlog in sorted(backlogs.items())
            if name not in conditions and (backlog.pending or backlog.dead)
        ]
        return SinkList(sinks=sinks + gone)

    async def pause_sink(self, which: Which) -> SinkView:
        await self._admin.sinks.pause(self._known(which))
        return await self._view(which)

    async def resume_sink(self, which: Which) -> SinkView:
        await self._admin.sinks.resume(self._known(which))
        return await self._view(which)

    async def retry_sink(self, which: Which, meant: MaybeOne) -> Retried:
        sink, seq = self._known(which), None
        if meant.id is not None:
            seq = (await self._pending(sink, One(id=meant.id, source=meant.source))).seq
        elif meant.source is not None:
            raise HTTPException(409, "source: goes with an id; give both, or neither.")
        count = await self._admin.sinks.retry(sink, seq)
        return Retried(sink=await self._view(which), brought_forward=count)

    async def discard_delivery(self, which: Which, meant: One) -> GivenUp:
        if which.name not in await self._admin.store.backlogs():
            self._known(which)
        event = await self._pending(which.name, meant)
        try:
            in_flight = await self._admin.sinks.discard(which.name, event.seq)
        except LookupError:
            raise _not_pending(which.name, meant) from None
        return GivenUp(source=event.source, id=event.id, in_flight=in_flight)

    async def _pending(self, sink: str, meant: One) -> EventRecord:
        """The event, which has a pending delivery to the sink."""
        selection = Selection(id=meant.id, source=meant.source, sink=sink, outcome="pending")
        found = await self._admin.operations.events(selection, (), limit=2)
        if not found:
            raise _not_pending(sink, meant)
        if len(found) > 1:
            sources = " and ".join(sorted(each.source for each in found))
            raise HTTPException(409, f"{meant.id} came from {sources}: say which source.")
        return found[0]

    async def test_sink(self, which: Which) -> Checked:
        try:
            found = await self._admin.sinks.check(self._known(which))
        except SinkError as error:
            return Checked(
                reached=False,
                found=None,
                reason=error.reason,
                status=error.status,
                result=result_of(error),
            )
        return Checked(reached=True, found=found, reason=None, status=None, result=None)

    def _known(self, which: Which) -> str:
        if which.name not in self._admin.sinks.conditions():
            raise HTTPException(404, f"There is no sink {which.name} in the config.")
        return which.name

    async def _view(self, which: Which) -> SinkView:
        backlogs = await self._admin.store.backlogs()
        condition = self._admin.sinks.conditions()[which.name]
        return _view(condition, backlogs.get(which.name, Backlog()))


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """All that is done with sinks."""
    sinks = _Sinks(admin)

    def post(
        verb: str,
        summary: str,
        handler: Handler,
        answer: type = SinkView,
        body: type | None = None,
    ) -> Operation:
        problems = {404: "There is no such sink in the config."}
        if body is not None:
            problems = {
                404: "There is no such sink, or no pending delivery of this event to it.",
                409: "Events of several sources have this id, or there is a source without an id.",
            }
        return Operation(
            method="POST",
            path=f"/api/v1/sinks/{{name}}/{verb}",
            summary=summary,
            handler=handler,
            parameters=Which,
            body=body,
            answer=answer,
            problems=problems,
        )

    return (
        Operation(
            method="GET",
            path="/api/v1/sinks",
            summary="Every sink, its state and its backlog.",
            handler=sinks.list_sinks,
            answer=SinkList,
        ),
        post("pause", "Keep what comes for the sink until it is resumed.", sinks.pause_sink),
        post("resume", "Deliver to the sink again.", sinks.resume_sink),
        post(
            "retry",
            "Have pending deliveries come due now, all or one, and probe the sink at once.",
            sinks.retry_sink,
            Retried,
            MaybeOne,
        ),
        post(
            "discard",
            "Give one pending delivery up for good.",
            sinks.discard_delivery,
            GivenUp,
            One,
        ),
        replace(
            post("test", "Reach the sink's far end without an event.", sinks.test_sink, Checked),
            only_asks=True,
        ),
    )


def _not_pending(sink: str, meant: One) -> HTTPException:
    return HTTPException(404, f"No delivery of {meant.id} to {sink} is pending.")


def _view(condition: SinkStatus, backlog: Backlog) -> SinkView:
    return SinkView(
        condition=condition,
        pending=backlog.pending,
        dead=backlog.dead,
        oldest_pending_ms=backlog.oldest_ms,
    )
