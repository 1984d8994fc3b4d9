"""Replays: counted, begun, watched and cancelled."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.exceptions import HTTPException

from relay.admin.api.values import Filter, Number
from relay.admin.control import Admin
from relay.admin.operation import Operation
from relay.store.desk import Replay, ReplayState, Selection

SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """One replay."""

    id: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayView:
    """A replay and how far it is: `done` of `total` deliveries have come to an end."""

    id: int
    created_ms: int
    selection: Selection
    state: ReplayState
    total: int
    opened: int
    done: int
    ended_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayList:
    """The newest first."""

    replays: Sequence[ReplayView]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Deliveries of one kind of event to one sink."""

    kind: str
    sink: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a replay would deliver now."""

    total: int
    shares: Sequence[Share]


def operations(admin: Admin) -> tuple[Operation, ...]:
    """What can be done with replays."""

    async def view(replay: Replay | None, number: int = 0) -> ReplayView:
        if replay is None:
            raise HTTPException(404, f"There is no replay {number}.")
        under_way = sum((await admin.desk.under_way(replay.id)).values())
        return ReplayView(
            id=replay.id,
            created_ms=replay.created_ms,
            selection=replay.selection,
            state=replay.state,
            total=replay.total,
            opened=replay.opened,
            done=max(0, replay.opened - under_way),
            ended_ms=replay.ended_ms,
        )

    async def count_replay(_: object, chosen: Filter) -> Estimate:
        found = await admin.replays.count(chosen.selection())
        shares = [Share(kind=kind, sink=sink, count=n) for (kind, sink), n in sorted(found.items())]
        return Estimate(total=found.total(), shares=shares)

    async def begin_replay(_: object, chosen: Filter) -> ReplayView:
        return await view(await admin.replays.begin(chosen.selection()))

    async def list_replays(_: object) -> ReplayList:
        found = await admin.desk.replays(limit=SHOWN)
        return ReplayList(replays=[await view(each) for each in found])

    async def show_replay(which: Which) -> ReplayView:
        return await view(await admin.desk.replay(which.id), which.id)

    async def cancel_replay(which: Which) -> ReplayView:
        return await view(await admin.replays.cancel(which.id), which.id)

    missing = {404: "There is no such replay."}
    return (
        Operation(
            method="GET",
            path="/api/v1/replays",
            summary="The replays there were, the newest first.",
            handler=list_replays,
            answer=ReplayList,
        ),
        Operation(
            method="POST",
            path="/api/v1/replays",
            summary="Deliver the events that fit again, to the sinks whose routes take them.",
            handler=begin_replay,
            body=Filter,
            answer=ReplayView,
        ),
        Operation(
            method="POST",
            path="/api/v1/replays/count",
            summary="What such a replay would deliver; changes nothing.",
            handler=count_replay,
            body=Filter,
            answer=Estimate,
            only_asks=True,
        ),
        Operation(
            method="GET",
            path="/api/v1/replays/{id:number}",
            summary="One replay and how far it is.",
            handler=show_replay,
            parameters=Which,
            answer=ReplayView,
            problems=missing,
        ),
        Operation(
            method="POST",
            path="/api/v1/replays/{id:number}/cancel",
            summary="End a replay, and take back what of it is not on its way.",
            handler=cancel_replay,
            parameters=Which,
            answer=ReplayView,
            problems=missing,
        ),
    )
