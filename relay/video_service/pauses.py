"""Pauses after failures, by source, each twice as long as the one before."""

from typing import NamedTuple

from relay.core.clock import Clock

FIRST_S = 5.0
MAX_S = 300.0


class _Pause(NamedTuple):
    until_s: float
    seconds: float


class Pauses:
    """Tells which sources are asked nothing for now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: dict[str, _Pause] = {}

    def has(self, source: str) -> bool:
        """Whether the source's pause has not ended yet."""
        pause = self._pauses.get(source)
        return pause is not None and self._clock.monotonic() < pause.until_s

    def begin(self, source: str) -> None:
        """Begin a pause after a failure."""
        last = self._pauses.get(source)
        seconds = FIRST_S if last is None else min(last.seconds * 2, MAX_S)
        self._pauses[source] = _Pause(self._clock.monotonic() + seconds, seconds)

    def end(self, source: str) -> None:
        """End the pause after a success; the next one is a first one again."""
        self._pauses.pop(source, None)
