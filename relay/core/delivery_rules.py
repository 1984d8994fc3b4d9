"""Delivery schedule of the video service, and the events that a downtime costs by it.

video-service.md, section 6. An event is lost only if all of its six attempts fall into the downtime
(delivery.md, section 1).
"""

import msgspec

WAITS_S = (20, 40, 80, 160, 320)
"""Waits before the second to the sixth attempt, in seconds.

It is undocumented whether they run from the start or the end of an attempt.
"""

TIMEOUT_S = 10.0
"""Response timeout of each attempt, in seconds."""

WINDOW_S = sum(WAITS_S)
"""Time from an event's first attempt to its last, in seconds, if responses are quick."""

GIVE_UP_S = WINDOW_S + (len(WAITS_S) + 1) * TIMEOUT_S
"""Time from an event's first attempt until the sender has given up, in seconds."""


WINDOW_MS = WINDOW_S * 1000
"""Time from an event's first attempt to its last, in milliseconds."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A period between two moments, in milliseconds since the epoch."""

    from_ms: int
    to_ms: int

    @property
    def seconds(self) -> float:
        return (self.to_ms - self.from_ms) / 1000


class Downtime(Interval, frozen=True, kw_only=True):
    """The period from the last heartbeat to the next start."""

    lacks: Interval | None
    """Events first sent in this period are lost; None if retries covered the whole downtime."""

    @property
    def lost_s(self) -> float:
        """Seconds from which events are lost."""
        return 0.0 if self.lacks is None else self.lacks.seconds


def downtime_between(alive_ms: int | None, now_ms: int) -> Downtime | None:
    """Return the downtime since the last heartbeat; None without one, or if no time has passed."""
    if alive_ms is None or now_ms <= alive_ms:
        return None
    given_up_ms = now_ms - WINDOW_MS
    lacks = Interval(from_ms=alive_ms, to_ms=given_up_ms) if given_up_ms > alive_ms else None
    return Downtime(from_ms=alive_ms, to_ms=now_ms, lacks=lacks)
