"""Replays: forecast, started, shown and cancelled."""

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
class ReplayId:
    """One replay."""

    id: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPage:
    """One page of the replays before the one with a number."""

    before: Number | None = None
    limit: Limit = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayView:
    """A replay and its progress.

    Of its `total` deliveries, `opened` are pending again or settled: `under_way` and `done`. A
    cancelled replay does not count deliveries that it has taken back.
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
    """One page, newest first; `next` is None on the last."""

    replays: Sequence[ReplayView]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Count of deliveries by kind of event, sink and, for dead letters, reason."""

    kind: str
    sink: str
    reason: str | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Deliveries that a replay would make now; `nothing` says why there are none."""

    total: int
    shares: Sequence[Share]
    nothing: str | None


class _Replays:
    """Handlers of the operations on replays."""

    def __init__(self, admin: AdminServices) -> None:
        self._admin = admin

    async def list_replays(self, page: ReplayPage) -> ReplayList:
        replays = await self._admin.operations.replays(before=page.before, limit=page.limit + 1)
        shown, more = replays[: page.limit], len(replays) > page.limit
        return ReplayList(
            replays=[await self._view(each) for each in shown], next=shown[-1].id if more else None
        )

    async def count_replay(self, _: object, chosen: Filter) -> Estimate:
        selection = await self._selected(chosen)
        forecast = await self._admin.replays.count(selection)
        deliveries = forecast.deliveries
        return Estimate(
            total=deliveries.total(),
            shares=[
                Share(kind=kind, sink=sink, reason=reason, count=deliveries[kind, sink, reason])
                for kind, sink, reason in sorted(deliveries, key=str)
            ],
            nothing=None if deliveries else await self._why_nothing(selection, forecast),
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

    async def show_replay(self, path: ReplayId) -> ReplayView:
        return await self._view(_require(await self._admin.operations.replay(path.id), path))

    async def cancel_replay(self, path: ReplayId) -> ReplayView:
        return await self._view(_require(await self._admin.replays.cancel(path.id), path))

    async def _selected(self, chosen: Filter) -> Selection:
        if chosen.outcome == "pending":
            text = "Pending deliveries need no replay; drop outcome, or choose another."
            raise HTTPException(422, text)
        return await selected(self._admin, chosen)

    async def _why_nothing(self, selection: Selection, forecast: Forecast) -> str:
        if forecast.under_way:
            return "the selected deliveries are already pending"
        if forecast.events:
            return "no sink's route takes the selected events"
        if await self._admin.operations.events(selection, self._admin.routes(), limit=1):
            return "the bodies of the selected events have expired or were erased"
        if selection.sink is not None and selection.outcome is selection.reason is None:
            return (
                f"no selected event has a delivery to {selection.sink}; use outcome missed for "
                "events that its route takes but it never got"
            )
        return "no stored event matches"

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


def _require(replay: Replay | None, path: ReplayId) -> Replay:
    if replay is None:
        raise HTTPException(404, f"There is no replay {path.id}.")
    return replay


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """Return the operations on replays."""
    replays = _Replays(admin)
    missing = {404: "There is no such replay."}
    return (
        Operation(
            method="GET",
            path="/api/v1/replays",
            summary="Replays, newest first.",
            handler=replays.list_replays,
            parameters=ReplayPage,
            response=ReplayList,
        ),
        Operation(
            method="POST",
            path="/api/v1/replays",
            summary="Deliver the selected events again, to the sinks whose routes take them.",
            handler=replays.begin_replay,
            body=Order,
            response=ReplayView,
            problems={**PROBLEMS, 409: "There is nothing to replay; the detail says why."},
        ),
        Operation(
            method="POST",
            path="/api/v1/replays/count",
            summary="Forecast a replay; changes nothing.",
            handler=replays.count_replay,
            body=Filter,
            response=Estimate,
            read_only=True,
            problems=PROBLEMS,
        ),
        Operation(
            method="GET",
            path="/api/v1/replays/{id:number}",
            summary="One replay and its progress.",
            handler=replays.show_replay,
            parameters=ReplayId,
            response=ReplayView,
            problems=missing,
        ),
        Operation(
            method="POST",
            path="/api/v1/replays/{id:number}/cancel",
            summary="Cancel a replay, and take back its deliveries that are not in flight.",
            handler=replays.cancel_replay,
            parameters=ReplayId,
            response=ReplayView,
            problems=missing,
        ),
    )
