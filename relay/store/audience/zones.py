"""Days and hours of time zones, and how far they are off UTC."""

from collections.abc import Iterator
from datetime import datetime, time, tzinfo

from relay.core.minutes import DAY_MS


def day_of(at_ms: int, zone: tzinfo) -> tuple[str, int]:
    """Return the day of a time in a zone, and the start of that day."""
    day = datetime.fromtimestamp(at_ms / 1000, zone).date()
    return day.isoformat(), round(datetime.combine(day, time.min, zone).timestamp() * 1000)


def offsets(first_ms: int, last_ms: int, zone: tzinfo) -> Iterator[tuple[int, int]]:
    """Yield each offset from UTC with its end, exclusive, all in milliseconds."""
    at_ms, offset = first_ms, _offset_ms(first_ms, zone)
    while at_ms < last_ms:
        next_ms = min(at_ms + DAY_MS, last_ms)
        if _offset_ms(next_ms, zone) != offset:
            change_ms = _change_ms(at_ms, next_ms, zone)
            yield change_ms, offset
            next_ms, offset = change_ms, _offset_ms(change_ms, zone)
        at_ms = next_ms
    yield last_ms + 1, offset


def is_constant(first_ms: int, last_ms: int, zone: tzinfo) -> bool:
    """Whether the zone's clocks do not change."""
    return len(list(offsets(first_ms, last_ms, zone))) == 1


def is_aligned(first_ms: int, last_ms: int, zone: tzinfo, *, unit_ms: int) -> bool:
    """Whether the zone's clocks are off UTC by whole units, and change after whole ones."""
    *changes, last = offsets(first_ms, last_ms, zone)
    return last[1] % unit_ms == 0 and all(
        change_ms % unit_ms == 0 and offset % unit_ms == 0 for change_ms, offset in changes
    )


def _change_ms(before_ms: int, after_ms: int, zone: tzinfo) -> int:
    """Return the first millisecond whose offset is not that of `before_ms`."""
    offset = _offset_ms(before_ms, zone)
    while after_ms - before_ms > 1:
        middle_ms = (before_ms + after_ms) // 2
        if _offset_ms(middle_ms, zone) == offset:
            before_ms = middle_ms
        else:
            after_ms = middle_ms
    return after_ms


def _offset_ms(at_ms: int, zone: tzinfo) -> int:
    offset = datetime.fromtimestamp(at_ms / 1000, zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds() * 1000)
