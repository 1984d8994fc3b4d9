"""Replays: forecast, started, shown and cancelled."""

from collections.abc import Sequence

import msgspec
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import (
    PROBLEMS,
    EventOrder,
    Filter,
    Number,
    Paging,
    require_one,
    selected,
)
from relay.admin.operation import Nothing, Operation
from relay.admin.services import AdminServices
from relay.store.replays import Forecast, Progress, Replay, ReplayState, unreported
from relay.store.selection import Selection


class ReplayId(msgspec.Struct, frozen=True, kw_only=True):
    """One replay."""

    id: Number


class ReplayView(msgspec.Struct, frozen=True, kw_only=True):
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


class ReplayList(msgspec.Struct, frozen=True, kw_only=True):
    """One page, newest first; `next` is None on the last."""

    replays: Sequence[ReplayView]
    next: int | None


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Count of deliveries by kind of event, sink and, for dead letters, reason."""

    kind: str
    sink: str
    reason: str | None
    count: int


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries that a replay would make now; `nothing` says why there are none."""

    total: int
    shares: Sequence[Share]
    nothing: str | None


async def list_replays(admin: AdminServices, page: Paging) -> ReplayList:
    """Replays, newest first."""
    replays = await admin.store.replays.newest(before=page.before, limit=page.limit + 1)
    shown, more = replays[: page.limit], len(replays) > page.limit
    return ReplayList(
        replays=[await _view(admin, each) for each in shown], next=shown[-1].id if more else None
    )


async def begin_replay(
    admin: AdminServices, _: Nothing, order: EventOrder, *, counted: int | None = None
) -> ReplayView:
    """Deliver the selected events again, to the sinks whose routes take them."""
    require_one(order)
    selection = await _selected(admin, order)
    replay = await admin.replays.begin(selection, counted=counted)
    if replay is None:
        forecast = await admin.replays.count(selection)
        why = await _why_nothing(admin, selection, forecast)
        raise HTTPException(409, f"Nothing to replay: {why}.")
    return await _view(admin, replay)


async def count_replay(
    admin: AdminServices, _: Nothing, chosen: Filter, *, progress: Progress = unreported
) -> Estimate:
    """Forecast a replay; changes nothing."""
    selection = await _selected(admin, chosen)
    forecast = await admin.replays.count(selection, progress=progress)
    deliveries = forecast.deliveries
    return Estimate(
        total=deliveries.total(),
        shares=[
            Share(kind=kind, sink=sink, reason=reason, count=deliveries[kind, sink, reason])
            for kind, sink, reason in sorted(deliveries, key=str)
        ],
        nothing=None if deliveries else await _why_nothing(admin, selection, forecast),
    )


async def show_replay(admin: AdminServices, path: ReplayId) -> ReplayView:
    """One replay and its progress."""
    return await _view(admin, _require(await admin.store.replays.one(path.id), path))


async def cancel_replay(admin: AdminServices, path: ReplayId) -> ReplayView:
    """Cancel a replay, and take back its deliveries that are not in flight."""
    return await _view(admin, _require(await admin.replays.cancel(path.id), path))


async def _selected(admin: AdminServices, chosen: Filter) -> Selection:
    if chosen.outcome == "pending":
        text = "Pending deliveries need no replay; drop outcome, or choose another."
        raise HTTPException(422, text)
    return await selected(admin, chosen)


async def _why_nothing(admin: AdminServices, selection: Selection, forecast: Forecast) -> str:
    if forecast.under_way:
        return "the selected deliveries are already pending"
    if forecast.events:
        return "no sink's route takes the selected events"
    if await admin.store.events.page(selection, admin.routes, limit=1):
        return "the bodies of the selected events have expired or were erased"
    if selection.sink is not None and selection.outcome is selection.reason is None:
        return (
            f"no selected event has a delivery to {selection.sink}; use outcome missed for "
            "events that its route takes but it never got"
        )
    if selection.outcome == "dead":
        return "no dead letter matches"
    return "no stored event matches"


async def _view(admin: AdminServices, replay: Replay) -> ReplayView:
    pending = sum((await admin.store.replays.under_way(replay.id)).values())
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


_MISSING = {404: "There is no such replay."}

OPERATIONS = (
    Operation("GET", "/api/v1/replays", list_replays),
    Operation(
        "POST",
        "/api/v1/replays",
        begin_replay,
        PROBLEMS | {409: "There is nothing to replay; the detail says why."},
    ),
    Operation("POST", "/api/v1/replays/count", count_replay, PROBLEMS, audited=False),
    Operation("GET", "/api/v1/replays/{id:number}", show_replay, _MISSING),
    Operation("POST", "/api/v1/replays/{id:number}/cancel", cancel_replay, _MISSING),
)
