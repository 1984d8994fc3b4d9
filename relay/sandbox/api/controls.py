"""The controls under `/sandbox/`: what a developer or a test makes happen; no key is needed."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from relay.sandbox.analytics.records import Record
from relay.sandbox.api.operation import Body, Control, Id, Parameters
from relay.sandbox.api.videos import Title, VideoAnswer, VideoRecord
from relay.sandbox.model import Access
from relay.sandbox.services import Services

PREFIX = "/sandbox"
SPEED_MAX = 100_000

Seconds = Annotated[float, Meta(ge=0, le=1_000_000)]
Length = Annotated[float, Meta(gt=0, le=1_000_000)]


class KeyRecord(Record):
    """A key with its value, which the service would show only once."""

    id: str
    name: str
    access: Access
    value: str
    created_at: str
    last_used_at: str | None
    revoked_at: str | None


class KeyAnswer(Record):
    """One key."""

    key: KeyRecord


class KeyList(Record):
    """All keys."""

    keys: list[KeyRecord]


class NewKey(Body):
    """A key's label and access."""

    name: Title
    access: Access


class Clock(Record):
    """How fast the sandbox's time runs."""

    speed: float
    stopped: bool


class ClockChange(Body):
    """What changes about the time; the rest stays."""

    speed: Annotated[float, Meta(gt=0, le=SPEED_MAX)] | None = None
    stopped: bool | None = None


class Limit(Body):
    """For how long every request gets 429, and whether with Retry-After."""

    seconds: Seconds
    retry_after: bool = True


class Down(Body):
    """For how long connections are closed without an answer."""

    seconds: Seconds


class AnswersChange(Body):
    """How the API's answers differ from the truth; an empty one makes them right again."""

    slow: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    drop: list[str] = msgspec.field(default_factory=list)
    change: dict[str, Any] = msgspec.field(default_factory=dict)


class NewVideo(Body):
    """A video that is uploaded and processed at once."""

    title: Title
    duration_seconds: Length | None = None


class Trim(Body):
    """The length of a video after a trim."""

    duration_seconds: Length


class Failure(Body):
    """The text of the video's `errorMessage`."""

    message: Title | None = None


def list_keys(services: Services, _: Parameters) -> KeyList:
    """List the keys with their values."""
    return KeyList(keys=[KeyRecord.copy_of(key) for key in services.workspace.keys.values()])


def create_key(services: Services, _: Parameters, body: NewKey) -> KeyAnswer:
    """Create a key."""
    return KeyAnswer(key=KeyRecord.copy_of(services.keys.create(body.name, body.access)))


def revoke_key(services: Services, key: Id) -> KeyAnswer:
    """Revoke a key, at once."""
    return KeyAnswer(key=KeyRecord.copy_of(services.keys.revoke(key.id)))


def read_clock(services: Services, _: Parameters) -> Clock:
    """Say how fast the sandbox's time runs."""
    return Clock(speed=services.schedule.speed, stopped=services.schedule.is_stopped)


def set_clock(services: Services, nothing: Parameters, body: ClockChange) -> Clock:
    """Change the speed, or stop or continue the time."""
    if body.speed is not None:
        services.schedule.set_speed(body.speed)
    if body.stopped is not None and body.stopped != services.schedule.is_stopped:
        (services.schedule.stop if body.stopped else services.schedule.resume)()
    return read_clock(services, nothing)


def limit(services: Services, _: Parameters, body: Limit) -> None:
    """Answer every request of the API with 429 for a while."""
    services.faults.limit(body.seconds, says_when=body.retry_after)


def go_down(services: Services, _: Parameters, body: Down) -> None:
    """Close every connection without an answer for a while."""
    services.faults.go_down(body.seconds)


def change_answers(services: Services, _: Parameters, body: AnswersChange) -> None:
    """Slow the API's answers down, and falsify them."""
    faults = services.faults
    faults.slow_s, faults.dropped, faults.changed = body.slow, tuple(body.drop), body.change


def add_video(services: Services, _: Parameters, body: NewVideo) -> VideoAnswer:
    """Upload a video and process it at once."""
    video = services.library.add(title=body.title, duration_s=body.duration_seconds)
    return VideoAnswer(video=VideoRecord.of(video))


def replace_video(services: Services, video: Id) -> VideoAnswer:
    """Replace the file of a video; a new version follows."""
    return VideoAnswer(video=VideoRecord.of(services.library.replace(video.id)))


def trim_video(services: Services, video: Id, body: Trim) -> VideoAnswer:
    """Trim a video; a new version follows."""
    trimmed = services.library.trim(video.id, duration_s=body.duration_seconds)
    return VideoAnswer(video=VideoRecord.of(trimmed))


def fail_video(services: Services, video: Id, body: Failure) -> VideoAnswer:
    """Let the processing of a video fail."""
    failed = services.library.fail(video.id, message=body.message)
    return VideoAnswer(video=VideoRecord.of(failed))


OPERATIONS = tuple(
    Control(method, f"{PREFIX}/{path}", handler, status=status)
    for method, path, handler, status in (
        ("GET", "keys", list_keys, 200),
        ("POST", "keys", create_key, 201),
        ("POST", "keys/{id}/revoke", revoke_key, 200),
        ("GET", "clock", read_clock, 200),
        ("POST", "clock", set_clock, 200),
        ("POST", "limits", limit, 204),
        ("POST", "down", go_down, 204),
        ("POST", "answers", change_answers, 204),
        ("POST", "videos", add_video, 201),
        ("POST", "videos/{id}/replace", replace_video, 200),
        ("POST", "videos/{id}/trim", trim_video, 200),
        ("POST", "videos/{id}/fail", fail_video, 200),
    )
)
