"""Periods of whole days in UTC, both ends included."""

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta

import msgspec

from relay.sandbox.errors import Refusal
from relay.sandbox.model import Session

DEFAULT_DAYS = 30
DAYS_MAX = 366
"""The longest period that statistics cover."""

_DAY = timedelta(days=1)


class Period(msgspec.Struct, frozen=True):
    """Some days in a row."""

    first: date
    last: date

    def days(self) -> Iterator[date]:
        for number in range((self.last - self.first).days + 1):
            yield self.first + number * _DAY

    def select(self, sessions: Iterable[Session]) -> list[Session]:
        """Return the sessions that began in the period."""
        return [each for each in sessions if self.first <= day(each.started_ms) <= self.last]


def day(ms: int) -> date:
    """Return the day of a time, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).date()


def period(*, days: int | None, first: date | None, last: date | None, now_ms: int) -> Period:
    """Return the last days, today included, or those from first to last; raises Refusal."""
    if days is not None and (first is not None or last is not None):
        raise Refusal(422, "days: expected either days, or from and to.")
    if first is None and last is None:
        today = day(now_ms)
        return Period(today - ((days or DEFAULT_DAYS) - 1) * _DAY, today)
    if first is None or last is None:
        raise Refusal(422, "from: expected both from and to.")
    if not first <= last < first + DAYS_MAX * _DAY:
        raise Refusal(422, f"to: expected a day from `from` on, and at most {DAYS_MAX} days.")
    return Period(first, last)
