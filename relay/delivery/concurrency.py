"""How many of one sink's events are in flight, and how many more may start."""

UNSETTLED_PER_SLOT = 4
UNSETTLED_MAX = 256
"""Unsettled outcomes allowed per slot, and in total."""


class ConcurrencyLimit:
    """Counts the events in flight, and the batches that carry them."""

    def __init__(self, slots: int, batch: int) -> None:
        self._batch = batch
        self._batches_max = slots // batch
        self.unsettled_max = min(UNSETTLED_PER_SLOT * slots, UNSETTLED_MAX)
        self._batches = 0
        self.in_flight = 0

    def room(self, *, unsettled: int, alone: bool) -> int:
        """Return how many events may start as one batch; `alone` allows one and nothing beside."""
        if alone:
            return 0 if self.in_flight or unsettled else 1
        if self._batches == self._batches_max or unsettled >= self.unsettled_max:
            return 0
        return self._batch

    def begin(self, events: int) -> None:
        """Record that a batch of this many events starts."""
        self._batches += 1
        self.in_flight += events

    def end(self, events: int) -> None:
        """Record that a batch of this many events has ended."""
        self._batches -= 1
        self.in_flight -= events
