"""The latest requests of each source, for the relay's verdict."""

from collections import defaultdict, deque

import msgspec

SKEWS_MAX = 21
"""Number of latest requests for the clock skew."""

SKEWS_MIN = 5
"""Minimum number of requests for a skew; with fewer, one late retry looks like a wrong clock."""

RECENT_MS = 3_600_000


class SignatureRefusals(msgspec.Struct, frozen=True, kw_only=True):
    """Refused signatures since the last valid one; times are milliseconds since the epoch."""

    count: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    retried: int = 0
    """Of these, repetitions of an earlier request at the sender's retry times."""
    untimely: int = 0
    """Of these, requests with a valid signature outside the tolerance."""
    skew_s: float = 0.0
    """Our clock minus the time of the signature, of the last of these."""

    def plus(self, *, retried: bool, skew_s: float | None, now_ms: int) -> "SignatureRefusals":
        return SignatureRefusals(
            count=self.count + 1,
            first_ms=now_ms if self.first_ms is None else self.first_ms,
            last_ms=now_ms,
            retried=self.retried + retried,
            untimely=self.untimely + (skew_s is not None),
            skew_s=self.skew_s if skew_s is None else skew_s,
        )


class SourceTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic of one source since the relay started."""

    verified_ms: int | None
    """Receipt of the last request with a valid signature."""
    skew_s: float | None
    """Our clock minus the sender's: the median of the last hour, of an even number the upper one.

    None for too few requests.
    """
    refusals: SignatureRefusals


class _Latest(msgspec.Struct):
    verified_ms: int | None = None
    skews: deque[tuple[int, float]] = msgspec.field(default_factory=lambda: deque(maxlen=SKEWS_MAX))
    refusals: SignatureRefusals = SignatureRefusals()


class Traffic:
    """Keeps a bounded number of requests per source."""

    def __init__(self) -> None:
        self._latest: defaultdict[str, _Latest] = defaultdict(_Latest)

    def verified(self, source: str, skew_s: float, *, now_ms: int) -> None:
        latest = self._latest[source]
        latest.verified_ms = now_ms
        latest.skews.append((now_ms, skew_s))
        latest.refusals = _NONE

    def refused(self, source: str, *, skew_s: float | None, retried: bool, now_ms: int) -> None:
        """Count a refusal; `skew_s` is set if the signature is valid but outside the tolerance."""
        latest = self._latest[source]
        if skew_s is not None:
            latest.skews.append((now_ms, skew_s))
        latest.refusals = latest.refusals.plus(retried=retried, skew_s=skew_s, now_ms=now_ms)

    def of(self, source: str, *, now_ms: int) -> SourceTraffic:
        latest = self._latest.get(source, _Latest())
        skews = [skew_s for at_ms, skew_s in latest.skews if now_ms - at_ms < RECENT_MS]
        return SourceTraffic(
            verified_ms=latest.verified_ms,
            skew_s=sorted(skews)[len(skews) // 2] if len(skews) >= SKEWS_MIN else None,
            refusals=latest.refusals,
        )


_NONE = SignatureRefusals()
