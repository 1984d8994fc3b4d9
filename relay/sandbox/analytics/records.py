"""Analytics as the API writes them; docs/video-service.md lists the names."""

from typing import Any, Self

import msgspec

from relay.core.event import rfc3339_or_none
from relay.sandbox.model import Workspace


class Record(msgspec.Struct, rename="camel", kw_only=True):
    """Base of the records."""

    @classmethod
    def copy_of(cls, model: msgspec.Struct, **more: Any) -> Self:
        """Take what is not given from the model's fields of the same names; times become texts."""
        for name in cls.__struct_fields__:
            if name not in more and hasattr(model, name):
                more[name] = getattr(model, name)
            elif name not in more:
                more[name] = rfc3339_or_none(getattr(model, f"{name.removesuffix('_at')}_ms"))
        return cls(**more)


class VideoName(Record):
    """Which video; one that was deleted keeps its title here."""

    id: str
    title: str

    @classmethod
    def of(cls, workspace: Workspace, video_id: str) -> "VideoName":
        return cls(id=video_id, title=workspace.titles[video_id])


class ViewerName(Record):
    """Who watched, where the service knows it."""

    email: str
    name: str | None


class ClickRecord(Record):
    """What a viewer clicked, and when."""

    label: str
    url: str
    at: str


class Submission(Record):
    """A form that a viewer submitted."""

    id: str
    email: str
    name: str
    fields: dict[str, Any]
    created_at: str


class SessionRecord(Record):
    """One view of one video; the percentage is that of this view alone."""

    id: str
    video: VideoName
    viewer: ViewerName | None
    started_at: str
    ended_at: str | None
    watched_seconds: float
    watched_percent: float
    finished: bool
    country: str
    device: str
    page: str
    utm: dict[str, str]
    clicked: list[ClickRecord]
    submitted: list[Submission]


class SessionPage(Record):
    """Some sessions, the oldest first."""

    sessions: list[SessionRecord]
    next: str | None


class WatchedVideo(Record):
    """All views of one video by one person; the percentage is that of all of them together."""

    video: VideoName
    sessions: int
    watched_seconds: float
    watched_percent: float
    finished: bool
    first_watched_at: str
    last_watched_at: str


class ViewerHistory(Record):
    """Everything that a person watched."""

    viewer: ViewerName
    videos: list[WatchedVideo]


class LiveVideo(Record):
    """How many watch a video now."""

    id: str
    title: str
    viewers: int


class Live(Record):
    """Who is watching now."""

    viewers: int
    videos: list[LiveVideo]


class Figures(Record):
    """The figures of some views."""

    plays: int
    viewers: int
    watched_seconds: float
    leads: int
    completion_rate: float
    """How many of those who watched a video had finished it, 0 to 1."""


class VideoFigures(Figures):
    """The figures of a video."""

    id: str
    title: str


class DayPlays(Record):
    """Plays of a day."""

    date: str
    plays: int


class PagePlays(Record):
    """Plays on a page."""

    page: str
    plays: int


class CampaignPlays(Record):
    """Plays that a campaign led to."""

    source: str | None
    medium: str | None
    campaign: str | None
    plays: int


class CountryPlays(Record):
    """Plays from a country."""

    country: str
    plays: int


class DevicePlays(Record):
    """Plays on a kind of device."""

    device: str
    plays: int


class RetentionPoint(Record):
    """How many viewers saw the moment at this percentage of a video."""

    percent: int
    viewers: int


class WorkspaceStats(Record):
    """Statistics of the workspace in a period."""

    from_date: str = msgspec.field(name="from")
    to_date: str = msgspec.field(name="to")
    totals: Figures
    days: list[DayPlays]
    videos: list[VideoFigures]
    pages: list[PagePlays]
    campaigns: list[CampaignPlays]


class VideoStats(Record):
    """Statistics of a video in a period."""

    video: VideoName
    from_date: str = msgspec.field(name="from")
    to_date: str = msgspec.field(name="to")
    plays: int
    viewers: int
    completion_rate: float
    retention: list[RetentionPoint]
    countries: list[CountryPlays]
    devices: list[DevicePlays]


class Comparison(Record):
    """The figures of some videos, side by side."""

    videos: list[VideoFigures]
