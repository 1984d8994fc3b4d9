"""The sinks: how they are doing, and the operator's hand on them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from starlette.exceptions import HTTPException

from relay.admin.api.values import Text
from relay.admin.control import Admin
from relay.admin.operation import Handler, Operation
from relay.condition import Condition
from relay.delivery import Result
from relay.errors import SinkError
from relay.retry import result_of
from relay.store import Backlog


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """One sink."""

    name: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkView:
    """One sink and what waits for it."""

    condition: Condition
    pending: int
    dead: int
    oldest_pending_ms: int | None
    """When the oldest event was received that waits for it; replayed ones do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkList:
    """In the order of the config."""

    sinks: Sequence[SinkView]


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

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def list_sinks(self, _: object) -> SinkList:
        backlogs = await self._admin.store.backlogs()
        conditions = self._admin.sinks.conditions()
        return SinkList(
            sinks=[_view(each, backlogs.get(name, Backlog())) for name, each in conditions.items()]
        )

    async def pause_sink(self, which: Which) -> SinkView:
        await self._admin.sinks.pause(self._known(which))
        return await self._view(which)

    async def resume_sink(self, which: Which) -> SinkView:
        await self._admin.sinks.resume(self._known(which))
        return await self._view(which)

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


def operations(admin: Admin) -> tuple[Operation, ...]:
    """All that is done with sinks."""
    sinks = _Sinks(admin)

    def post(verb: str, summary: str, handler: Handler, answer: type = SinkView) -> Operation:
        return Operation(
            method="POST",
            path=f"/api/v1/sinks/{{name}}/{verb}",
            summary=summary,
            handler=handler,
            parameters=Which,
            answer=answer,
            problems={404: "There is no such sink in the config."},
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
        replace(
            post("test", "Reach the sink's far end without an event.", sinks.test_sink, Checked),
            only_asks=True,
        ),
    )


def _view(condition: Condition, backlog: Backlog) -> SinkView:
    return SinkView(
        condition=condition,
        pending=backlog.pending,
        dead=backlog.dead,
        oldest_pending_ms=backlog.oldest_ms,
    )
