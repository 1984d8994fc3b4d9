"""Faults that a test may ask for: refusals with 429, silence, slowness and false answers."""

from collections.abc import Sequence
from typing import Any

from relay.core.clock import Clock
from relay.sandbox.errors import Refusal


class Faults:
    """The faults of the moment; each ends by the clock, or where it is set anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limited_until_ms = 0
        self._says_when = True
        self._down_until_ms = 0
        self.slow_s = 0.0
        """How much longer each answer of the API takes, in real seconds."""
        self.dropped: tuple[str, ...] = ()
        """Fields that answers lack, as paths such as `sessions.viewer.email`."""
        self.changed: dict[str, Any] = {}
        """Values that answers have in place of the true ones, by path."""

    def limit(self, seconds: float, *, says_when: bool) -> None:
        """Refuse every request with 429, with or without Retry-After."""
        self._limited_until_ms = self._end_ms(seconds)
        self._says_when = says_when

    def go_down(self, seconds: float) -> None:
        """Close connections without an answer."""
        self._down_until_ms = self._end_ms(seconds)

    @property
    def is_down(self) -> bool:
        return self._clock.now_ms() < self._down_until_ms

    def admit(self) -> None:
        """Raise Refusal while requests are refused with 429."""
        left_ms = self._limited_until_ms - self._clock.now_ms()
        if left_ms > 0:
            wait_s = -(-left_ms // 1000) if self._says_when else None
            raise Refusal(429, "Too many requests.", retry_after_s=wait_s)

    @property
    def is_lying(self) -> bool:
        return bool(self.dropped or self.changed)

    def distort(self, document: Any) -> Any:
        """Drop and change the fields of an answer, in place."""
        for path in self.dropped:
            for place, name in _places(document, path.split(".")):
                place.pop(name, None)
        for path, value in self.changed.items():
            for place, name in _places(document, path.split(".")):
                place[name] = value
        return document

    def _end_ms(self, seconds: float) -> int:
        return self._clock.now_ms() + round(seconds * 1000)


def _places(document: Any, path: Sequence[str]) -> list[tuple[dict[str, Any], str]]:
    """Find the objects that a path leads to, through every item of a list."""
    if isinstance(document, list):
        return [place for item in document for place in _places(item, path)]
    if not isinstance(document, dict):
        return []
    if len(path) == 1:
        return [(document, path[0])]
    return _places(document.get(path[0]), path[1:])
