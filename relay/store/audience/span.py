"""Times on the bounds of days, weeks and half hours."""

from typing import Self

import msgspec


class Span(msgspec.Struct, frozen=True):
    """A time; the end is exclusive, and not before the start."""

    since_ms: int
    until_ms: int

    def __bool__(self) -> bool:
        return self.since_ms < self.until_ms

    def whole(self, unit_ms: int) -> Self:
        """Return the part that consists of whole units, which may be empty."""
        since_ms = -(-self.since_ms // unit_ms) * unit_ms
        if since_ms >= self.until_ms:
            return self.end()
        return type(self)(since_ms, max(since_ms, self.until_ms // unit_ms * unit_ms))

    def around(self, inner: Self) -> tuple[Self, Self]:
        """Return the parts of this span before and after `inner`."""
        make = type(self)
        return make(self.since_ms, inner.since_ms), make(inner.until_ms, self.until_ms)

    def end(self) -> Self:
        """Return the empty part at its end."""
        return type(self)(self.until_ms, self.until_ms)
