"""The videos: from creation through processing to Trash and deletion (sections 2 to 4)."""

import mimetypes
from pathlib import PurePosixPath
from random import Random
from typing import Any

import httpx

from relay.sandbox.errors import Refusal, unknown
from relay.sandbox.model import Video, Workspace
from relay.sandbox.schedule import Schedule
from relay.sandbox.webhooks import Publisher, valid_url

FILE_MAX = 20 * (1 << 30)
"""Maximum size of a file, in bytes."""

PROCESSING_S = 60.0
"""Time that processing takes, and one second more for each 10 MB."""
_BYTES_PER_SECOND = 10_000_000

_DURATIONS_S = (45, 3600)
_SIZES = ((1280, 720), (1920, 1080), (1080, 1920), (3840, 2160))
_IMPORTED_TYPE = "video/mp4"
"""Of a file whose link does not say it."""
_IMPORTED_BYTES = (5_000_000, 900_000_000)
_FAULT = "The file has no video or audio track."


class Library:
    """Changes the videos of a workspace, and publishes the events about them."""

    def __init__(self, workspace: Workspace, schedule: Schedule, publisher: Publisher) -> None:
        self._workspace = workspace
        self._schedule = schedule
        self._publisher = publisher

    def resume(self) -> None:
        """Go on with the processing of a workspace that was read from a file."""
        for video_id, due_ms in self._workspace.processing.items():
            self._schedule.at(due_ms, lambda video_id=video_id: self._end_processing(video_id))  # type: ignore[misc]

    def get(self, video_id: str) -> Video:
        video = self._workspace.videos.get(video_id)
        if video is None:
            raise unknown("video")
        return video

    def create(self, *, title: str, filename: str, size: int, media_type: str) -> Video:
        """Add a video whose file is still to come; raises Refusal for a file of no use."""
        if size > FILE_MAX:
            raise Refusal(413, f"size: a file has at most {FILE_MAX} bytes.")
        kind = media_type.partition("/")[0].lower()
        if kind not in {"video", "audio"}:
            raise Refusal(415, "type: expected a video or audio type.")
        now_ms = self._schedule.now_ms()
        video_id = self._workspace.new_id("vid")
        random = Random(f"{self._workspace.seed} {video_id}")
        width, height = random.choice(_SIZES) if kind == "video" else (0, 0)
        video = Video(
            id=video_id,
            title=title,
            filename=filename,
            type=media_type,
            size=size,
            duration_s=float(random.randint(*_DURATIONS_S)),
            width=width,
            height=height,
            created_ms=now_ms,
            updated_ms=now_ms,
        )
        self._workspace.videos[video.id] = video
        self._workspace.titles[video.id] = title
        self._publisher.publish("video.created", {"id": video.id, "title": title})
        return video

    def import_from(self, url: str, *, title: str | None) -> Video:
        """Add a video from the link to a file, which is not fetched; its processing begins."""
        link = httpx.URL(valid_url(url, field="url"))
        name = PurePosixPath(link.path).name
        media_type = mimetypes.guess_type(name)[0] or _IMPORTED_TYPE
        name = name or link.host
        size = Random(f"{self._workspace.seed} {url}").randint(*_IMPORTED_BYTES)
        video = self.create(title=title or name, filename=name, size=size, media_type=media_type)
        self.begin_processing(video)
        return video

    def add(self, *, title: str, duration_s: float | None = None) -> Video:
        """Add a video that is uploaded and processed at once."""
        filename = f"{title.lower().replace(' ', '-')}.mp4"
        video = self.create(title=title, filename=filename, size=50_000_000, media_type="video/mp4")
        if duration_s is not None:
            video.duration_s = duration_s
        self._end(video)
        return video

    def begin_processing(self, video: Video) -> None:
        """Process the file that has arrived; `video.ready` follows."""
        self._change(video, "processing")
        due_ms = self._schedule.due_ms(PROCESSING_S + video.size / _BYTES_PER_SECOND)
        self._workspace.processing[video.id] = due_ms
        self._schedule.at(due_ms, lambda: self._end_processing(video.id))

    def replace(self, video_id: str) -> Video:
        """Replace the file of a ready video; a new version follows."""
        video = self._ready(video_id)
        self.begin_processing(video)
        return video

    def trim(self, video_id: str, *, duration_s: float) -> Video:
        """Cut a ready video to its first part; a new version follows."""
        video = self._ready(video_id)
        if duration_s >= video.duration_s:
            raise Refusal(422, "durationSeconds: expected less than the video has.")
        video.trimmed_s = duration_s
        self.begin_processing(video)
        return video

    def fail(self, video_id: str, *, message: str | None) -> Video:
        """Let the processing fail; a new video fails, a published one keeps its version."""
        video = self.get(video_id)
        if self._workspace.processing.pop(video.id, None) is None:
            raise Refusal(409, "The video is not being processed.")
        if video.is_published:
            video.trimmed_s = None
            self._change(video, "ready")
            return video
        video.error = message or _FAULT
        self._change(video, "failed")
        self._publisher.publish("video.failed", processed(video))
        return video

    def trash(self, video_id: str) -> None:
        """Move a video to Trash; one that is there stays."""
        video = self.get(video_id)
        if video.trashed:
            return
        video.trashed = True
        video.updated_ms = self._schedule.now_ms()
        self._publish_deleted(video)

    def delete(self, video_id: str) -> None:
        """Delete a video for good."""
        video = self.get(video_id)
        video.trashed = False
        workspace = self._workspace
        del workspace.videos[video.id]
        workspace.processing.pop(video.id, None)
        for token in [key for key, each in workspace.uploads.items() if each.video == video.id]:
            del workspace.uploads[token]
        self._publish_deleted(video)

    def _ready(self, video_id: str) -> Video:
        video = self.get(video_id)
        if video.status != "ready" or video.trashed:
            raise Refusal(409, "The video is not ready, or in Trash.")
        return video

    def _end_processing(self, video_id: str) -> None:
        # A later change of the video has its own time, or none where it failed or was deleted.
        due_ms = self._workspace.processing.get(video_id)
        if due_ms is None or due_ms > self._schedule.time_ms():
            return
        del self._workspace.processing[video_id]
        self._end(self.get(video_id))

    def _end(self, video: Video) -> None:
        video.version += video.is_published
        if video.trimmed_s is not None:
            video.duration_s, video.trimmed_s = video.trimmed_s, None
        video.is_published = True
        self._change(video, "ready")
        self._publisher.publish("video.ready", processed(video))

    def _change(self, video: Video, status: Any) -> None:
        video.status = status
        video.updated_ms = self._schedule.now_ms()

    def _publish_deleted(self, video: Video) -> None:
        data = {"id": video.id, "title": video.title, "trashed": video.trashed}
        self._publisher.publish("video.deleted", data)


def processed(video: Video) -> dict[str, Any]:
    """Return the data of `video.ready` and `video.failed`; unknown until it was ready once."""
    known = video.is_published
    duration_s = int(video.duration_s) if video.duration_s.is_integer() else video.duration_s
    return {
        "id": video.id,
        "title": video.title,
        "status": video.status,
        "version": video.version,
        "durationSeconds": duration_s if known else None,
        "width": (video.width or None) if known else None,
        "height": (video.height or None) if known else None,
        "errorMessage": video.error,
    }
