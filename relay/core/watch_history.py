"""The videos that a person has watched, for the recipients of the person's lead (pure).

Titles and ids come from others: each is made one printable line of bounded length.
"""

from collections.abc import Iterable

import msgspec

VIDEOS_MAX = 20
"""Videos kept of one history; the others are only counted."""

TITLE_MAX = 100
ID_MAX = 100
LATEST_MS = 4_102_444_800_000
"""The year 2100; a later time is a broken one."""


class WatchedVideo(msgspec.Struct, frozen=True, kw_only=True):
    """All that one person has watched of one video; None for what is unknown."""

    id: str
    title: str | None = None
    milestone: str | None = None
    """The furthest one."""
    last_ms: int | None = None


class WatchHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Create it with `of`, which limits its size."""

    count: int
    """Number of videos, including those cut from `videos`."""
    videos: tuple[WatchedVideo, ...]
    """The one that was watched last comes first."""

    @classmethod
    def of(cls, videos: Iterable[WatchedVideo]) -> "WatchHistory":
        """Sort, clean and cut; videos may come in any order."""
        known = sorted(map(_clean, videos), key=lambda video: -(video.last_ms or 0))
        return cls(count=len(known), videos=tuple(known[:VIDEOS_MAX]))

    @property
    def last_ms(self) -> int | None:
        """The last visit; None where no video says when it was watched."""
        return self.videos[0].last_ms if self.videos else None


class KeptHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A history that is kept in memory, with its origin."""

    source: str
    at_ms: int
    """When the source's API answered."""
    history: WatchHistory


def _clean(video: WatchedVideo) -> WatchedVideo:
    last_ms = video.last_ms
    return WatchedVideo(
        id=_line(video.id, ID_MAX),
        title=_line(video.title or "", TITLE_MAX) or None,
        milestone=video.milestone,
        last_ms=last_ms if last_ms is not None and 0 <= last_ms < LATEST_MS else None,
    )


def _line(text: str, limit: int) -> str:
    # The margin is for characters that are dropped.
    head = " ".join(text[: limit * 4].split())
    visible = "".join(char for char in head if char.isprintable())
    return visible if len(visible) <= limit else visible[: limit - 1] + "…"
