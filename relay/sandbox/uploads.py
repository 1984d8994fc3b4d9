"""Files on their way to storage: whole, or in parts; their bytes are counted, never kept."""

import secrets
from collections.abc import Mapping

from relay.sandbox.errors import Refusal
from relay.sandbox.library import Library
from relay.sandbox.model import Upload, Video, Workspace
from relay.sandbox.schedule import Schedule

PART_SIZE = 16 * (1 << 20)
"""Size of each part but the last, in bytes."""

VALID_S = 6 * 3600
"""Time for which an upload URL can be used; `--speed` shortens it."""


class Uploads:
    """The upload URLs of a workspace."""

    def __init__(self, workspace: Workspace, schedule: Schedule, library: Library) -> None:
        self._workspace = workspace
        self._schedule = schedule
        self._library = library

    def begin(self, video: Video) -> Upload:
        """Make the URL for a whole file."""
        return self._add(video, part=None, size=video.size)

    def begin_parts(self, video_id: str) -> list[Upload]:
        """Make a URL for each part; raises Refusal."""
        video = self._awaited(video_id)
        if self._parts(video):
            raise Refusal(409, "The upload in parts has begun; resume it.")
        if self._whole(video):
            raise Refusal(409, "The file has arrived as a whole.")
        full, rest = divmod(video.size, PART_SIZE)
        sizes = [PART_SIZE] * full + [rest] * bool(rest)
        return [self._add(video, part=part, size=size) for part, size in enumerate(sizes, 1)]

    def resume_parts(self, video_id: str) -> tuple[list[Upload], list[Upload]]:
        """Return the parts that arrived, and the others with new URLs."""
        parts = self._begun_parts(self._awaited(video_id))
        missing = [part for part in parts if part.arrived_ms is None]
        for part in missing:
            self._renew(part)
        return [part for part in parts if part.arrived_ms is not None], missing

    def complete(self, video_id: str) -> Video:
        """Begin the processing of a file that was sent whole."""
        video = self._awaited(video_id)
        if not self._whole(video):
            raise Refusal(409, "No file has arrived.")
        return self._process(video)

    def complete_parts(self, video_id: str) -> Video:
        """Begin the processing of a file that was sent in parts."""
        video = self._awaited(video_id)
        if any(part.arrived_ms is None for part in self._begun_parts(video)):
            raise Refusal(409, "Not all parts have arrived.")
        return self._process(video)

    def admit(self, token: str, headers: Mapping[str, str]) -> Upload:
        """Return the upload of a PUT; raises Refusal unless its URL and headers are right."""
        upload = self._workspace.uploads.get(token)
        if upload is None or self._schedule.time_ms() >= upload.expires_ms:
            raise Refusal(403, "The upload URL is not valid, or no longer.")
        if any(headers.get(name) != value for name, value in upload.headers.items()):
            raise Refusal(403, "The headers are not those of the upload.")
        return upload

    def arrived(self, upload: Upload, *, size: int) -> None:
        """Note a file or a part as arrived; raises Refusal if it is not whole."""
        if size != upload.size:
            raise Refusal(400, f"Expected {upload.size} bytes.")
        upload.arrived_ms = self._schedule.now_ms()

    def _awaited(self, video_id: str) -> Video:
        video = self._library.get(video_id)
        if video.status != "uploading":
            raise Refusal(409, "The video's file has arrived already.")
        return video

    def _add(self, video: Video, *, part: int | None, size: int) -> Upload:
        headers = {"Content-Type": video.type, "X-Upload-Size": str(size)}
        upload = Upload(
            token="", video=video.id, part=part, size=size, headers=headers, expires_ms=0
        )
        self._renew(upload)
        return upload

    def _renew(self, upload: Upload) -> None:
        """Give the upload a new URL; the one before is no longer valid."""
        self._workspace.uploads.pop(upload.token, None)
        upload.token = secrets.token_urlsafe(24)
        upload.expires_ms = self._schedule.due_ms(VALID_S)
        self._workspace.uploads[upload.token] = upload

    def _parts(self, video: Video) -> list[Upload]:
        uploads = self._workspace.uploads.values()
        parts = [each for each in uploads if each.video == video.id and each.part is not None]
        return sorted(parts, key=lambda each: each.part or 0)

    def _begun_parts(self, video: Video) -> list[Upload]:
        parts = self._parts(video)
        if not parts:
            raise Refusal(409, "No upload in parts has begun.")
        return parts

    def _whole(self, video: Video) -> bool:
        return any(
            each.video == video.id and each.part is None and each.arrived_ms is not None
            for each in self._workspace.uploads.values()
        )

    def _process(self, video: Video) -> Video:
        uploads = self._workspace.uploads
        for token in [key for key, each in uploads.items() if each.video == video.id]:
            del uploads[token]
        self._library.begin_processing(video)
        return video
