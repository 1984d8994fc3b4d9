"""Replays: counted, begun, watched and cancelled."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.exceptions import HTTPException

from relay.admin.api.filters import PROBLEMS, require_one, selected
from relay.admin.api.parameters import Filter, Limit, Number, Order
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.replays import Forecast, Replay, ReplayState
from relay.store.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """One replay."""

    id: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPage:
    """Replays begun before the one of a number."""

    before: Number | None = None
    limit: Limit = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayView:
    """A replay and how far it is.

    It is for `total` deliveries; of these, `opened` are out: `done` have come to an end, and
    `under_way` wait or are being sent. What a cancelled one has taken back is not out any more.
    """

    id: int
    created_ms: int
    selection: Selection
    state: ReplayState
    total: int
    opened: int
    done: int
    under_way: int
    ended_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayList:
    """One page, the newest first; `next` is None on the last."""

    replays: Sequence[ReplayView]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Deliveries of one kind of event to one sink, which are dead for that reason, if any."""

    kind: str
    sink: str
    reason: str | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a replay would deliver now; `nothing` says why that is nothing."""

    total: int
    shares: Sequence[Share]
    nothing: str | None


class _Replays:
    """What can be done with replays."""

    def __init__(self, admin: AdminServices) -> None:
        self._admin = admin

    async def list_replays(self, page: ReplayPage) -> ReplayList:
        found = await self._admin.operations.replays(before=page.before, limit=page.limit + 1)
        shown, more = found[: page.limit], len(found) > page.limit
        return ReplayList(
            replays=[await self._view(each) for each in shown], next=shown[-1].id if more else None
        )

    async def count_replay(self, _: object, chosen: Filter) -> Estimate:
        selection = await self._selected(chosen)
        forecast = await self._admin.replays.count(selection)
        found = forecast.deliveries
        return Estimate(
            total=found.total(),
            shares=[
                Share(kind=kind, sink=sink, reason=reason, count=found[kind, sink, reason])
                for kind, sink, reason in sorted(found, key=str)
            ],
            nothing=None if found else await self._why_nothing(selection, forecast),
        )

    async def begin_replay(self, _: object, order: Order) -> ReplayView:
        require_one(order)
        selection = await self._selected(order)
        replay = await self._admin.replays.begin(selection)
        if replay is None:
            forecast = await self._admin.replays.count(selection)
            why = await self._why_nothing(selection, forecast)
            raise HTTPException(409, f"Nothing to replay: {why}.")
        return await self._view(replay)

    async def show_replay(self, which: Which) -> ReplayView:
        return await self._view(_there(await self._admin.operations.replay(which.id), which))

    async def cancel_replay(self, which: Which) -> ReplayView:
        return await self._view(_there(await self._admin.replays.cancel(which.id), which))

    async def _selected(self, chosen: Filter) -> Selection:
        if chosen.outcome == "pending":
            text = "What is pending is delivered anyway, so outcome cannot be pending."
            raise HTTPException(422, text)
        return await selected(self._admin, chosen)

    async def _why_nothing(self, selection: Selection, forecast: Forecast) -> str:
        if forecast.under_way:
            return "what fits is on its way already"
        if forecast.events:
            return "no sink's route takes what fits"
        if await self._admin.operations.events(selection, self._admin.routes(), limit=1):
            return "the bodies of what fits are gone: their retention is over, or they were erased"
        if selection.sink is not None and selection.outcome is selection.reason is None:
            return (
                f"no stored event that fits has a delivery to {selection.sink}; outcome missed "
                "chooses those that its route takes and it never got"
            )
        return "no stored event fits"

    async def _view(self, replay: Replay) -> ReplayView:
        pending = sum((await self._admin.operations.under_way(replay.id)).values())
        under_way = min(pending, replay.opened)
        return ReplayView(
            id=replay.id,
            created_ms=replay.created_ms,
            selection=replay.selection,
            state=replay.state,
            total=replay.total,
            opened=replay.opened,
            done=replay.opened - under_way,
            under_way=under_way,
            ended_ms=replay.ended_ms,
        )


def _there(replay: Replay | None, which: Which) -> Replay:
    if replay is None:
        raise HTTPException(404, f"There is no replay {which.id}.")
    return replay


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """All that is done with replays."""
    replays = _Replays(admin)
    missing = {404: "There is no such replay."}
    return (
        Operation(
            method="GET",
            path="/api/v1/replays",
            summary="The replays there were, the newest first.",
            handler=replays.list_replays,
            parameters=ReplayPage,
            answer=ReplayList,
        ),
        Operation(
            method="POST",
            path="/api/v1/replays",
            summary="Deliver the events that fit again, to the sinks whose routes take them.",
            handler=replays.begin_replay,
            body=Order,
            answer=ReplayView,
            problems={**PROBLEMS, 409: "There is nothing to replay; the detail says why."},
        ),
        Operation(
            method="POST",
            path="/api/v1/replays/count",
            summary="What such a replay would deliver; changes nothing.",
            handler=replays.count_replay,
            body=Filter,
            answer=Estimate,
            only_asks=True,
            problems=PROBLEMS,
        ),
        Operation(
            method="GET",
            path="/api/v1/replays/{id:number}",
            summary="One replay and how far it is.",
            handler=replays.show_replay,
            parameters=Which,
            answer=ReplayView,
            problems=missing,
        ),
        Operation(
            method="POST",
            path="/api/v1/replays/{id:number}/cancel",
            summary="End a replay, and take back what of it is not on its way.",
            handler=replays.cancel_replay,
            parameters=Which,
            answer=ReplayView,
            problems=missing,
        ),
    )
