"""Rotation of a source's secret: its steps, and the forms that begin and finish it."""

from typing import Annotated

import msgspec
from msgspec import Meta

from relay.admin.api import sources as api
from relay.admin.operation import Nothing
from relay.admin.page.text.formats import clock
from relay.admin.page.view import Action, PageView
from relay.admin.page.visit import ActionResult, Context, Notice, PageVisit
from relay.core.minutes import MINUTE_MS
from relay.core.units import number

MINUTES = (5, 15, 30, 60)
"""Lengths to choose from."""


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """For how long unverified requests are kept."""

    minutes: Annotated[int, Meta(ge=1, le=60)] = 15


async def read_rotation(visit: PageVisit, path: api.SourceName) -> Context:
    """Read a rotation, and what it changes before it begins."""
    rotation: api.RotationView = await visit.run(api.show_rotation, path)
    source = next((each for each in visit.admin.config().sources if each.name == path.name), None)
    return {
        "rotation": rotation,
        "name": path.name,
        "labels": [] if source is None else [key.label for key in source.keys],
        "file": visit.admin.config().file,
        "has_endpoint": source is not None and source.api is not None and source.api.endpoint,
        "minutes": MINUTES,
    }


async def begin(visit: PageVisit, path: api.SourceName, length: Length) -> ActionResult:
    """Begin the rotation, or prolong it."""
    start = api.RotationStart(duration_ms=length.minutes * MINUTE_MS)
    rotation: api.RotationView = await visit.run(api.begin_rotation, path, start)
    until = "" if rotation.until_ms is None else f" until {clock(rotation.until_ms)} UTC"
    text = f"Requests that match no secret of {path.name} are kept{until}. Now change the secret."
    return _done(visit, path, Notice(text=text))


async def finish(visit: PageVisit, path: api.SourceName, _: Nothing) -> ActionResult:
    """Reload the config, accept what its secrets verify, and end the rotation."""
    rotation: api.RotationView = await visit.run(api.finish_rotation, path)
    text = (
        f"The rotation of {path.name} is finished: {number(rotation.verified)} of "
        f"{number(rotation.kept)} kept requests verified"
    )
    if not rotation.waiting:
        return _done(visit, path, Notice(text=f"{text}."))
    text = (
        f"{text}, {number(rotation.waiting)} match no secret. If the new secret in the config is "
        "wrong, correct it and finish again; else they are forged."
    )
    return _done(visit, path, Notice(text=text, tone="warn"))


def _done(visit: PageVisit, path: api.SourceName, notice: Notice) -> ActionResult:
    return ActionResult(to=visit.url(PATH.format(name=path.name)), notice=notice)


PATH = "/config/sources/{name}/rotation"

ROUTES = (
    PageView(PATH, read_rotation, "Rotation", "rotation.html", topics=("config", "changes")),
    Action(f"{PATH}/begin", begin),
    Action(f"{PATH}/finish", finish),
)
