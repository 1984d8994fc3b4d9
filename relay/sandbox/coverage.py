"""How much of a video has been seen: the union of parts, and the milestones that it passes.

Parts count by their share of the version that was played, so that a replaced or trimmed video,
with another duration, neither gives nor takes what a viewer had seen.
"""

import math
from collections.abc import Iterable, Iterator

from relay.core.event import MILESTONES, THRESHOLDS
from relay.sandbox.model import Part, Session

STARTED, COMPLETED = MILESTONES[0], MILESTONES[-1]

_ROUNDING = 1e-10
"""Of a sum of shares; a tenth of what `percent` makes up for."""


def union(parts: Iterable[Part]) -> list[Part]:
    """Return the parts in order, with those that meet or overlap as one."""
    joined: list[Part] = []
    for start, end in sorted(parts):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def shares(sessions: Iterable[Session]) -> list[Part]:
    """Return the union of the parts seen in some views of one video, as shares of it, 0 to 1."""
    return union(share(part, session.duration_s) for session in sessions for part in session.parts)


def share(part: Part, duration_s: float) -> Part:
    return (part[0] / duration_s, part[1] / duration_s)


def percent(seen: Iterable[Part]) -> float:
    """Return how much of a video a union of shares makes up, rounded down to a tenth.

    Milestones are decided by this number, so that none is passed that answers do not show.
    """
    total = math.fsum(end - start for start, end in seen)
    # for sums of fractions such as 0.1 + 0.2, and for positions in whole milliseconds
    return min(100.0, math.floor(total * 1000 + 1e-6) / 10)


def passed(percentage: float) -> tuple[str, ...]:
    """Return the milestones that a percentage has passed, in order."""
    return tuple(name for name, least in THRESHOLDS.items() if percentage >= least)


def is_finished(percentage: float) -> bool:
    return percentage >= THRESHOLDS[COMPLETED]


def next_passing(seen: list[Part], playing: Part) -> float | None:
    """Return the position in a part at which its playing will pass a further milestone.

    All are shares; None if the part passes none.
    """
    total = math.fsum(end - start for start, end in seen)
    current = percent(seen)
    for least in THRESHOLDS.values():
        if least > current:
            return _position(_gaps(seen, playing), least / 100 - total)
    return None


def _position(gaps: Iterable[Part], missing: float) -> float | None:
    for start, end in gaps:
        if end - start >= missing - _ROUNDING:
            return min(end, start + missing)
        missing -= end - start
    return None


def _gaps(seen: list[Part], playing: Part) -> Iterator[Part]:
    """Yield what a union lacks of a part."""
    position, last = playing
    for start, end in seen:
        if end <= position:
            continue
        if start >= last:
            break
        if start > position:
            yield position, start
        position = end
    if position < last:
        yield position, last


def includes(seen: Iterable[Part], position: float) -> bool:
    """Return whether a moment, as a share of the video, has been seen."""
    return any(start - _ROUNDING <= position <= end + _ROUNDING for start, end in seen)
