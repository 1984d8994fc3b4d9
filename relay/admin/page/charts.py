"""Geometry of the charts, drawn by templates as SVG."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

BAR_WIDTH = 0.76
"""Share of a column's width."""


class Bar(NamedTuple):
    """A rectangle in a chart; heights are shares of its height, from the top."""

    x: float
    y: float
    width: float
    height: float
    tone: str


class Stack(msgspec.Struct, frozen=True):
    """Bars, one column per value, with the greatest column's sum."""

    bars: Sequence[Bar]
    columns: int
    top: int


def stacked(columns: Sequence[Sequence[int]], tones: Sequence[str], *, height: int = 40) -> Stack:
    """Lay out columns of stacked values, the first tone at the bottom."""
    top = max((sum(values) for values in columns), default=0)
    bars = []
    for index, values in enumerate(columns):
        bottom = float(height)
        for value, tone in zip(values, tones, strict=True):
            if value:
                # At least visible, however small.
                tall = max(value / top * height, 0.6)
                bars.append(Bar(index + 0.12, bottom - tall, BAR_WIDTH, tall, tone))
                bottom -= tall
    return Stack(bars, len(columns), top)


TICKS_MAX = 5


def ticks(names: Sequence[str]) -> list[str]:
    """Keep the names of some columns, at nearly equal distances, from the first to the last."""
    steps = max(min(len(names), TICKS_MAX) - 1, 1)
    kept = {round(step * (len(names) - 1) / steps) for step in range(steps + 1)}
    return [name if at in kept else "" for at, name in enumerate(names)]


LEVELS = {"active": 0.4, "throttled": 0.65, "paused": 0.65, "parked": 1.0}
"""Heights of states, so that a strip can be read without colours."""

TONES = {"active": "ok", "throttled": "warn", "parked": "bad", "paused": "idle"}
"""Tones of states."""

STRIP_WIDTH, STRIP_HEIGHT = 144, 20


def strip(spans: Sequence[tuple[str | None, int, int]], from_ms: int, to_ms: int) -> list[Bar]:
    """Lay out a sink's states as (state, from, to); None is a time without the relay."""
    scale = STRIP_WIDTH / max(to_ms - from_ms, 1)
    return [
        Bar(
            x=(max(begin, from_ms) - from_ms) * scale,
            y=STRIP_HEIGHT * (1 - LEVELS.get(state or "", 0.15)),
            width=max((min(end, to_ms) - max(begin, from_ms)) * scale, 0.8),
            height=STRIP_HEIGHT * LEVELS.get(state or "", 0.15),
            tone=TONES.get(state or "", "none"),
        )
        for state, begin, end in spans
        if end > from_ms and begin < to_ms
    ]


GLOBALS = {"STRIP_WIDTH": STRIP_WIDTH, "STRIP_HEIGHT": STRIP_HEIGHT, "TONES": TONES}
"""For templates."""
