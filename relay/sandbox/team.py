"""The team behind the library: uploads videos, replaces and trims them, and clears up.

Now and then the processing of a new video fails. The library keeps about its size: the oldest of
too many videos moves to Trash, and is deleted for good a day later. The team leaves videos
alone that others have added.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from relay.sandbox.library import PROCESSING_S, Library
from relay.sandbox.model import Video, Workspace
from relay.sandbox.schedule import Schedule

HOUR_S = 3600.0

_TITLES = (
    "Product tour in four minutes",
    "Customer story: Northwind & Sons",
    "Webinar: pricing that people understand",
    "Onboarding, part 1: your first project",
    "Onboarding, part 2: your team",
    "What's new in spring",
    "Von der Idee zum Film",
    "Q&A with the founders",
    "Security and compliance <for IT teams>",
    "Three mistakes in every demo",
    "Customer story: Atelier 12",
    "Roadmap, explained by those who build it",
    "Comment réussir votre première vidéo",
    "Webinar: leads that sales will call",
    "How we support you",
    "Integrations in ten minutes",
)
_AGAIN = ", take "
_DURATIONS_S = (60, 1200)
_FIRST_UPLOAD_H = 1.0
_UPLOAD_H = (4.0, 16.0)
_REVISION_H = (12.0, 48.0)
_TRASH_S = 24 * HOUR_S
_SENDING_S = (30.0, 600.0)
_FAILING = 6
"""One in this many uploads fails, the second one first."""
_SPARE = 4
"""This many ready videos more are kept."""


class Team:
    """Looks after the videos of a workspace, by the schedule."""

    def __init__(self, workspace: Workspace, schedule: Schedule, library: Library) -> None:
        self._workspace = workspace
        self._schedule = schedule
        self._library = library
        self._random = Random(f"{workspace.seed} team {len(workspace.titles)}")
        self._uploads = 0
        self._size = 0

    def fill(self, videos: int) -> None:
        """Add ready videos to a library that never had any."""
        if not self._workspace.titles:
            for _ in range(videos):
                self._library.add(title=self._title(), duration_s=self._duration_s())

    def start(self, *, videos: int) -> None:
        """Begin to work, and keep about this many videos."""
        self._size = videos
        self._schedule.after(_FIRST_UPLOAD_H * HOUR_S, self._upload)
        self._schedule.after(self._between(_REVISION_H) * HOUR_S, self._revise)
        for video in self._workspace.videos.values():
            if video.trashed and _is_ours(video):
                self._later_delete(video)

    def _upload(self) -> None:
        self._schedule.after(self._between(_UPLOAD_H) * HOUR_S, self._upload)
        title = self._title()
        video = self._library.create(
            title=title,
            filename=f"upload-{len(self._workspace.titles)}.mp4",
            size=self._random.randint(5_000_000, 500_000_000),
            media_type="video/mp4",
        )
        video.duration_s = self._duration_s()
        self._uploads += 1
        is_failing = self._uploads % _FAILING == 2
        sent_s = self._between(_SENDING_S)
        self._schedule.after(sent_s, partial(self._process, video.id))
        if is_failing:
            self._schedule.after(sent_s + PROCESSING_S / 2, partial(self._fail, video.id))
        self._clear_up()

    def _process(self, video_id: str) -> None:
        video = self._workspace.videos.get(video_id)
        if video is not None and video.status == "uploading":
            self._library.begin_processing(video)

    def _fail(self, video_id: str) -> None:
        if video_id in self._workspace.processing:
            self._library.fail(video_id, message=None)
            self._schedule.after(HOUR_S, partial(self._delete, video_id, _has_failed))

    def _revise(self) -> None:
        """Replace or trim a video."""
        self._schedule.after(self._between(_REVISION_H) * HOUR_S, self._revise)
        ready = self._ready()
        if not ready:
            return
        video = self._random.choice(ready)
        shorter_s = round(video.duration_s * 0.9)
        if self._random.random() < 0.5 or shorter_s < 1:
            self._library.replace(video.id)
        else:
            self._library.trim(video.id, duration_s=float(shorter_s))

    def _clear_up(self) -> None:
        ready = self._ready()
        if len(ready) > self._size + _SPARE:
            self._library.trash(ready[0].id)
            self._later_delete(ready[0])

    def _later_delete(self, video: Video) -> None:
        self._schedule.after(_TRASH_S, partial(self._delete, video.id, _is_trashed))

    def _delete(self, video_id: str, is_due: Callable[[Video], bool]) -> None:
        video = self._workspace.videos.get(video_id)
        if video is not None and is_due(video):
            self._library.delete(video_id)

    def _ready(self) -> list[Video]:
        videos = self._workspace.videos.values()
        ready = (video for video in videos if video.status == "ready" and not video.trashed)
        return [video for video in ready if _is_ours(video)]

    def _title(self) -> str:
        again, index = divmod(len(self._workspace.titles), len(_TITLES))
        return f"{_TITLES[index]}{_AGAIN}{again + 1}" if again else _TITLES[index]

    def _duration_s(self) -> float:
        return float(self._random.randint(*_DURATIONS_S))

    def _between(self, bounds: tuple[float, float]) -> float:
        return self._random.uniform(*bounds)


def _is_ours(video: Video) -> bool:
    return video.title.partition(_AGAIN)[0] in _TITLES


def _has_failed(video: Video) -> bool:
    return video.status == "failed"


def _is_trashed(video: Video) -> bool:
    return video.trashed
