"""Rotation of a source's secret: its steps, and the forms that begin and finish it."""

from typing import Annotated

import msgspec
from msgspec import Meta

from relay.admin.api.rotation import (
    RotationStart,
    RotationView,
    SourceName,
    begin_rotation,
    finish_rotation,
    show_rotation,
)
from relay.admin.operation import Nothing
from relay.admin.page.text.formats import clock
from relay.admin.page.view import Action, View
from relay.admin.page.visit import Context, Done, Notice, Visit
from relay.core.minutes import MINUTE_MS
from relay.core.units import number

MINUTES = (5, 15, 30, 60)
"""Lengths to choose from."""


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """For how long unverified requests are kept."""

    minutes: Annotated[int, Meta(ge=1, le=60)] = 15


async def read_rotation(visit: Visit, path: SourceName) -> Context:
    """Read a rotation, and what it changes before it begins."""
    rotation: RotationView = await visit.run(show_rotation, path)
    source = next((each for each in visit.admin.config().sources if each.name == path.name), None)
    return {
        "rotation": rotation,
        "name": path.name,
        "labels": [] if source is None else [key.label for key in source.keys],
        "file": visit.admin.config().file,
        "has_endpoint": source is not None and source.api is not None and source.api.endpoint,
        "minutes": MINUTES,
    }


async def begin(visit: Visit, path: SourceName, length: Length) -> Done:
    """Begin the rotation, or prolong it."""
    start = RotationStart(duration_ms=length.minutes * MINUTE_MS)
    rotation: RotationView = await visit.run(begin_rotation, path, start)
    until = "" if rotation.until_ms is None else f" until {clock(rotation.until_ms)} UTC"
    text = f"Requests that match no secret of {path.name} are kept{until}. Now change the secret."
    return _done(visit, path, Notice(text=text))


async def finish(visit: Visit, path: SourceName, _: Nothing) -> Done:
    """Reload the config, accept what its secrets verify, and end the rotation."""
    rotation: RotationView = await visit.run(finish_rotation, path)
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


def _done(visit: Visit, path: SourceName, notice: Notice) -> Done:
    return Done(to=visit.url(PATH.format(name=path.name)), notice=notice)


PATH = "/config/sources/{name}/rotation"

VIEW = View(
    path=PATH,
    title="Rotation",
    template="rotation.html",
    read=read_rotation,
    topics=("config", "changes"),
)

ACTIONS = (
    Action(path=f"{PATH}/begin", perform=begin),
    Action(path=f"{PATH}/finish", perform=finish),
)
