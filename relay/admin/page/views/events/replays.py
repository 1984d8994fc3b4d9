"""Replays: all of them, and one with its progress."""

from functools import partial

import msgspec

from relay.admin.api.parameters import Paging
from relay.admin.api.replays import (
    ReplayId,
    ReplayView,
    cancel_replay,
    list_replays,
    show_replay,
)
from relay.admin.operation import Nothing
from relay.admin.page.filter_bar import Chip
from relay.admin.page.filters import form_fields, selection_chips
from relay.admin.page.lists import ListReader
from relay.admin.page.view import Action, View
from relay.admin.page.visit import PERSONAL_FIELDS, Context, Done, Notice, Visit
from relay.core.units import number


class ReplayRow(msgspec.Struct, frozen=True, kw_only=True):
    """A replay with its filter in words."""

    replay: ReplayView
    chips: list[Chip]

    @property
    def percent(self) -> int:
        """Share of the deliveries that are settled."""
        return self.replay.done * 100 // self.replay.total if self.replay.total else 100


def _row(visit: Visit, replay: ReplayView) -> ReplayRow:
    return ReplayRow(replay=replay, chips=selection_chips(visit, replay.selection))


async def read_replays(visit: Visit, page: Paging) -> Context:
    reader = ListReader(partial(visit.run, list_replays), "replays", "id")
    shown = await reader.page(visit.held, "rows", page)
    return {
        "replays": [_row(visit, each) for each in shown.response.replays],
        "next": shown.response.next,
        "rows": shown.attributes,
    }


async def read_replay(visit: Visit, path: ReplayId) -> Context:
    replay = await visit.run(show_replay, path)
    fields = form_fields(replay.selection)
    if not visit.may_change:
        # Nothing that is masked on the page may stand in its link either.
        fields = {
            name: value
            for name, value in fields.items()
            if name not in PERSONAL_FIELDS and visit.text(value) == value
        }
    return {"row": _row(visit, replay), "events": visit.url("/events", **fields)}


async def cancel(visit: Visit, path: ReplayId, _: Nothing) -> Done:
    replay = await visit.run(cancel_replay, path)
    to = visit.url(f"/replays/{path.id}")
    if replay.state != "cancelled":
        return Done(to=to, notice=Notice(text=f"Replay {path.id} was done already.", tone="warn"))
    text = (
        f"Replay {path.id} is cancelled after {number(replay.opened)} of "
        f"{number(replay.total)} deliveries; the others are as they were."
    )
    return Done(to=to, notice=Notice(text=text))


VIEWS = (
    View(
        path="/replays",
        title="Replays",
        template="replays.html",
        read=read_replays,
        topics=("changes", "deliveries"),
    ),
    View(
        path="/replays/{id:number}",
        title="Replay",
        template="replay.html",
        read=read_replay,
        topics=("changes", "deliveries"),
    ),
)
ACTIONS = (Action(path="/replays/{id:number}/cancel", perform=cancel),)
