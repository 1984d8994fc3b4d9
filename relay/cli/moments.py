"""Parses moments and durations on the command line."""

import re
from datetime import datetime, timedelta

from relay.core.config_values import Duration

_DURATION = re.compile(r"(?:[0-9]{1,9}(?:ms|s|m|h|d))+")
_PART = re.compile(r"[0-9]+[a-z]+")
_UNIX = re.compile(r"([0-9]{9,10}(?:\.[0-9]{1,9})?)|([0-9]{12,13})")
"""Seconds of the years 1973 to 2286, or milliseconds of the same years."""

_CLOCK = re.compile(r"(?:(today|yesterday)\s+)?([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_DAYS_BACK = {"today": 0, "yesterday": 1}

EXPECTED = (
    'expected how long ago ("7d", "1h30m"), "yesterday", a time of day ("11:18"), '
    "a date (2026-11-02, 2026-11-02T09:30Z) or a Unix time"
)


def parse(text: str) -> int:
    """Parse a moment to milliseconds since the epoch; raises ValueError."""
    return parse_at(text, now=datetime.now().astimezone())


def parse_at(text: str, *, now: datetime) -> int:
    """Parse a moment relative to `now`; without a zone it is local time."""
    text = text.strip()
    unix = _UNIX.fullmatch(text)
    if unix:
        return round(float(unix[1]) * 1000) if unix[1] else int(unix[2])
    try:
        return round(_moment(text, now).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ValueError(EXPECTED) from None


def duration(text: str) -> Duration:
    """Parse a duration such as `90s` or `1h30m`; raises ValueError."""
    if _DURATION.fullmatch(text) is None:
        return Duration.parse(text)
    return Duration(sum(Duration.parse(part) for part in _PART.findall(text)))


def _moment(text: str, now: datetime) -> datetime:
    if _DURATION.fullmatch(text):
        return now - timedelta(milliseconds=duration(text))
    if text == "now":
        return now
    if text in _DAYS_BACK:
        return _on_day(now, _DAYS_BACK[text], (0, 0, 0))
    clock = _CLOCK.fullmatch(text)
    if clock:
        at = (int(clock[2]), int(clock[3]), int(clock[4] or 0))
        return _on_day(now, _DAYS_BACK[clock[1]], at) if clock[1] else _last(now, at)
    return datetime.fromisoformat(text)


def _last(now: datetime, at: tuple[int, int, int]) -> datetime:
    """Return the latest past moment with this time of day: after midnight, 23:50 was yesterday."""
    today = _on_day(now, 0, at)
    return today if today <= now else _on_day(now, 1, at)


def _on_day(now: datetime, days_back: int, at: tuple[int, int, int]) -> datetime:
    hour, minute, second = at
    day = now.replace(tzinfo=None) - timedelta(days=days_back)
    local = day.replace(hour=hour, minute=minute, second=second, microsecond=0)
    return local.astimezone()
