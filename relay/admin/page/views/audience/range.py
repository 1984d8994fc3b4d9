"""The range of days of the audience, and its selection."""

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException

from relay.admin.api.audience import AudienceFilter, Zone, time_zone
from relay.admin.api.parameters import Text
from relay.store.audience import Grouping

Period = Literal["today", "7d", "30d", "all"]

DAYS = {"today": 1, "7d": 7, "30d": 30}
"""Days of the periods that end today."""

PERIODS = {"today": "Today", "7d": "7 days", "30d": "30 days", "all": "All"}

VIDEOS_MAX = 250

YEARS = range(1971, 2200)
"""Years that a date may have."""

_OTHERS = ("Etc/", "SystemV/", "US/", "Canada/", "Brazil/", "Chile/", "Mexico/")
"""Folders of other names for the same zones."""


class AudienceForm(msgspec.Struct, frozen=True, kw_only=True):
    """What the view shows; dates replace the period."""

    period: Period = "30d"
    since: date | None = None
    until: date | None = None
    """The last day."""
    zone: Zone = "UTC"
    source: Text | None = None
    video: Text | None = None
    limit: Annotated[int, Meta(ge=1, le=VIDEOS_MAX)] = 25
    """Of the table of videos."""


class Days(msgspec.Struct, frozen=True, kw_only=True):
    """Whole days of a zone; None is without end."""

    zone: tzinfo
    today: date
    first: date | None
    last: date | None

    @property
    def times(self) -> dict[str, Any]:
        """The range as the API's `since_ms` and `until_ms`."""
        after = None if self.last is None else self.last + timedelta(days=1)
        return {"since_ms": self._midnight_ms(self.first), "until_ms": self._midnight_ms(after)}

    def shown(self, oldest: str | None, *, limit: int) -> list[str]:
        """Return the last days of the range, without gaps, from the oldest with a count."""
        last = min(self.last or self.today, self.today)
        first = self.first or (last if oldest is None else date.fromisoformat(oldest))
        count = min(max((last - first).days + 1, 0), limit)
        return [(last - timedelta(days=ago)).isoformat() for ago in reversed(range(count))]

    def _midnight_ms(self, day: date | None) -> int | None:
        if day is None:
            return None
        return round(datetime.combine(day, time.min, self.zone).timestamp() * 1000)


def days_of(form: AudienceForm, now_ms: int) -> Days:
    """Return the chosen days; raises HTTPException."""
    zone = time_zone(form.zone)
    today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone).date()
    first, last = form.since, form.until
    for day in (first, last):
        if day is not None and day.year not in YEARS:
            raise HTTPException(400, f"{day} is too far away; take a day as {today}.")
    if first is not None and last is not None and first > last:
        raise HTTPException(400, f"{first} is after {last}; swap the two days.")
    if first is None and last is None and form.period in DAYS:
        first, last = today - timedelta(days=DAYS[form.period] - 1), today
    return Days(zone=zone, today=today, first=first, last=last)


@cache
def zone_names() -> list[str]:
    """Return the names to choose from; reads some hundred files."""
    from zoneinfo import available_timezones  # noqa: PLC0415  as in `time_zone`

    names = (each for each in available_timezones() if "/" in each)
    return ["UTC", *sorted(each for each in names if not each.startswith(_OTHERS))]


def filter_of(form: AudienceForm, days: Days, by: Grouping, limit: int) -> AudienceFilter:
    """Return the API's filter for the chosen range."""
    zone = form.zone if by in ("day", "hour") else None
    return AudienceFilter(
        by=by, limit=limit, zone=zone, source=form.source, video=form.video, **days.times
    )
