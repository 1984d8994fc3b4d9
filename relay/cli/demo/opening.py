"""The opening of the demo: one event of each kind, the same again, and a forgery."""

from collections.abc import Callable
from typing import Literal

import msgspec

from relay.sandbox.sandbox import Sandbox
from relay.sandbox.viewing import Visit

Repeat = Literal["the same again", "forged"]
AGAIN: Repeat = "the same again"
FORGED: Repeat = "forged"

_LINK = "https://files.example.com/quarterly-report.mp4"
_FIELDS = {"company": "Northwind & Sons", "message": "Please call me next week."}


class Act(msgspec.Struct, frozen=True):
    """A change at the video service, and how many events follow from it."""

    perform: Callable[[Sandbox], object]
    events: int


def _capture_lead(sandbox: Sandbox) -> None:
    """A stranger begins to watch, and says who it is; so the view counts as well."""
    videos = sandbox.workspace.videos.values()
    ready = next(video for video in videos if video.status == "ready")
    session = sandbox.viewing.begin(ready.id, Visit(utm={"source": "newsletter"}))
    sandbox.viewing.submit(
        session.id, email="ada.moreau@example.com", name="Ada Moreau", fields=_FIELDS
    )
    sandbox.viewing.end(session.id)


def _upload(sandbox: Sandbox) -> None:
    sandbox.library.add(title="Quarterly report")


def _fail(sandbox: Sandbox) -> None:
    video = sandbox.library.import_from(_LINK, title="Quarterly report, again")
    sandbox.library.fail(video.id, message=None)


def _trash(sandbox: Sandbox) -> None:
    failed = next(video for video in sandbox.workspace.videos.values() if video.status == "failed")
    sandbox.library.trash(failed.id)


def _send_test(sandbox: Sandbox) -> None:
    for endpoint in sandbox.workspace.endpoints:
        sandbox.webhooks.send_test(endpoint)


OPENING: tuple[Act | Repeat, ...] = (
    Act(_capture_lead, events=2),
    AGAIN,
    FORGED,
    Act(_upload, events=2),
    Act(_fail, events=2),
    Act(_trash, events=1),
    Act(_send_test, events=1),
)
