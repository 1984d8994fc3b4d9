"""The latest requests of each source, as far as a verdict on the relay needs them (pure)."""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median

SKEWS_MAX = 21
"""Requests whose times are compared with ours: the latest ones, odd in number for the median."""

SKEWS_MIN = 5
"""With fewer, a late try of one event would look like a clock that is wrong."""

RECENT_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """The refused signatures since the last good one; times are milliseconds since the epoch."""

    count: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    retried: int = 0
    """Of these, requests that repeat an earlier one when the sender would."""
    untimely: int = 0
    """Of these, requests whose signature is good, but whose time is too far from ours."""

    def plus(self, *, retried: bool, untimely: bool, now_ms: int) -> "Refusals":
        return Refusals(
            count=self.count + 1,
            first_ms=now_ms if self.first_ms is None else self.first_ms,
            last_ms=now_ms,
            retried=self.retried + retried,
            untimely=self.untimely + untimely,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTraffic:
    """One source, since the start of the relay."""

    verified_ms: int | None
    """When the last request came that had a good signature."""
    skew_s: float | None
    """Our clock less the sender's: the median of the last hour's latest; None for too few."""
    refusals: Refusals


@dataclass(slots=True)
class _Latest:
    verified_ms: int | None = None
    skews: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=SKEWS_MAX))
    refusals: Refusals = Refusals()


class Traffic:
    """Remembers a bounded number of requests for each source."""

    def __init__(self) -> None:
        self._latest: defaultdict[str, _Latest] = defaultdict(_Latest)

    def verified(self, source: str, skew_s: float, *, now_ms: int) -> None:
        latest = self._latest[source]
        latest.verified_ms = now_ms
        latest.skews.append((now_ms, skew_s))
        latest.refusals = _NONE

    def refused(self, source: str, *, skew_s: float | None, retried: bool, now_ms: int) -> None:
        """`skew_s` is known of a good signature alone, which was refused for its time."""
        latest = self._latest[source]
        if skew_s is not None:
            latest.skews.append((now_ms, skew_s))
        latest.refusals = latest.refusals.plus(
            retried=retried, untimely=skew_s is not None, now_ms=now_ms
        )

    def of(self, source: str, *, now_ms: int) -> SourceTraffic:
        latest = self._latest.get(source, _Latest())
        skews = [skew_s for at_ms, skew_s in latest.skews if now_ms - at_ms < RECENT_MS]
        return SourceTraffic(
            verified_ms=latest.verified_ms,
            skew_s=median(skews) if len(skews) >= SKEWS_MIN else None,
            refusals=latest.refusals,
        )


_NONE = Refusals()
