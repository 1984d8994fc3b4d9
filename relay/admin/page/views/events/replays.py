"""Replays: all of them, and one with its progress."""

import msgspec

from relay.admin.api import replays as api
from relay.admin.api.parameters import Paging
from relay.admin.operation import Nothing
from relay.admin.page.filter_bar import Chip
from relay.admin.page.filters import form_fields, selection_chips
from relay.admin.page.view import Action, PageView
from relay.admin.page.visit import PERSONAL_FIELDS, ActionResult, Context, Notice, PageVisit
from relay.core.units import number


class ReplayRow(msgspec.Struct, frozen=True, kw_only=True):
    """A replay with its filter in words."""

    replay: api.ReplayView
    chips: list[Chip]

    @property
    def percent(self) -> int:
        """Share of the deliveries that are settled."""
        return self.replay.done * 100 // self.replay.total if self.replay.total else 100


def _row(visit: PageVisit, replay: api.ReplayView) -> ReplayRow:
    return ReplayRow(replay=replay, chips=selection_chips(visit, replay.selection))


async def read_replays(visit: PageVisit, page: Paging) -> Context:
    shown = await visit.page(api.list_replays, page, rows="replays")
    return {
        "replays": [_row(visit, each) for each in shown.response.replays],
        "next": shown.response.next,
        "rows": shown.attributes,
    }


async def read_replay(visit: PageVisit, path: api.ReplayId) -> Context:
    replay = await visit.run(api.show_replay, path)
    fields = form_fields(replay.selection)
    if not visit.may_change:
        # Nothing that is masked on the page may stand in its link either.
        fields = {
            name: value
            for name, value in fields.items()
            if name not in PERSONAL_FIELDS and visit.text(value) == value
        }
    return {"row": _row(visit, replay), "events": visit.url("/events", **fields)}


async def cancel(visit: PageVisit, path: api.ReplayId, _: Nothing) -> ActionResult:
    replay = await visit.run(api.cancel_replay, path)
    to = visit.url(f"/replays/{path.id}")
    if replay.state != "cancelled":
        return ActionResult(
            to=to, notice=Notice(text=f"Replay {path.id} was done already.", tone="warn")
        )
    text = (
        f"Replay {path.id} is cancelled after {number(replay.opened)} of "
        f"{number(replay.total)} deliveries; the others are as they were."
    )
    return ActionResult(to=to, notice=Notice(text=text))


ROUTES = (
    PageView("/replays", read_replays, "Replays", "replays.html", topics=("changes", "deliveries")),
    PageView(
        "/replays/{id:number}",
        read_replay,
        "Replay",
        "replay.html",
        topics=("changes", "deliveries"),
    ),
    Action("/replays/{id:number}/cancel", cancel),
)
