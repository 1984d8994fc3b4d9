"""The video library: list, read, import, trash and delete (section 4)."""

from typing import Annotated

from msgspec import Meta

from relay.sandbox.analytics.records import Record
from relay.sandbox.api.operation import Body, Call, Id, Operation, Parameters, Url
from relay.sandbox.errors import Refusal
from relay.sandbox.library import processed
from relay.sandbox.model import Video, VideoStatus

PAGE = 100
PAGE_MAX = 1000

Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Title = Annotated[str, Meta(min_length=1, max_length=500)]


class VideoRecord(Record):
    """A video of the library, in Trash too; the unknown is null until processing has ended."""

    id: str
    title: str
    filename: str
    type: str
    size: int
    status: VideoStatus
    version: int
    duration_seconds: float | None
    width: int | None
    height: int | None
    error_message: str | None
    trashed: bool
    created_at: str
    updated_at: str

    @classmethod
    def of(cls, video: Video) -> "VideoRecord":
        known = processed(video)
        return cls.copy_of(
            video,
            duration_seconds=known["durationSeconds"],
            width=known["width"],
            height=known["height"],
            error_message=video.error,
        )


class VideoAnswer(Record):
    """One video."""

    video: VideoRecord


class Videos(Record):
    """A page of the library, the oldest videos first."""

    videos: list[VideoRecord]
    next: str | None


class Page(Parameters):
    """Which videos a list has."""

    limit: Limit = PAGE
    after: str | None = None


class Import(Body):
    """The link to a file; it is not fetched."""

    url: Url
    title: Title | None = None


class Deletion(Parameters):
    """Whether a video is deleted for good, rather than moved to Trash."""

    id: str
    permanent: bool = False


def list_videos(call: Call, page: Page) -> Videos:
    """List the videos of the library, trashed ones too."""
    videos = list(call.services.workspace.videos.values())
    if page.after is not None:
        last = _number(page.after)
        videos = [video for video in videos if _number(video.id) > last]
    shown = videos[: page.limit]
    more = len(videos) > len(shown)
    return Videos(
        videos=[VideoRecord.of(video) for video in shown], next=shown[-1].id if more else None
    )


def read_video(call: Call, video: Id) -> VideoAnswer:
    """Read one video."""
    return VideoAnswer(video=VideoRecord.of(call.services.library.get(video.id)))


def import_video(call: Call, _: Parameters, body: Import) -> VideoAnswer:
    """Import a video from the link to a file."""
    call.services.keys.count_import(call.key)
    video = call.services.library.import_from(body.url, title=body.title)
    return VideoAnswer(video=VideoRecord.of(video))


def delete_video(call: Call, deletion: Deletion) -> None:
    """Move a video to Trash, or delete it for good."""
    library = call.services.library
    if deletion.permanent:
        library.delete(deletion.id)
    else:
        library.trash(deletion.id)


def _number(video_id: str) -> int:
    """Return the part of an id that grows, also of a video that was deleted since."""
    prefix, _, digits = video_id.partition("_")
    if prefix != "vid" or not (digits.isascii() and digits.isdecimal() and len(digits) < 16):
        raise Refusal(422, "after: expected the `next` of a page.")
    return int(digits)


_FILE_PROBLEMS = {415: "The file is neither video nor audio."}

OPERATIONS = (
    Operation("GET", "/v1/videos", list_videos),
    Operation("GET", "/v1/videos/{id}", read_video),
    Operation(
        "POST",
        "/v1/videos/import",
        import_video,
        access="Read & write videos",
        status=201,
        problems=_FILE_PROBLEMS,
    ),
    Operation("DELETE", "/v1/videos/{id}", delete_video, access="Read & write videos", status=204),
)
