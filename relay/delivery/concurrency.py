"""How much of one sink is on its way, and whether there is room for more (pure)."""

UNSETTLED = 4
UNSETTLED_MAX = 256
"""Outcomes that wait for the disk while others are sent: so many per slot, and at most in all."""


class ConcurrencyLimit:
    """The events that are being sent at once, and the batches that they are in."""

    def __init__(self, slots: int, batch: int) -> None:
        self._batch = batch
        self._batches_max = slots // batch
        self._unsettled_max = min(UNSETTLED * slots, UNSETTLED_MAX)
        self._batches = 0
        self.sending = 0

    def room(self, *, unsettled: int, alone: bool) -> int:
        """How many events may start as one batch; `alone` is one with nothing beside it."""
        if alone:
            return 0 if self.sending or unsettled else 1
        if self._batches == self._batches_max or unsettled >= self._unsettled_max:
            return 0
        return self._batch

    def begin(self, events: int) -> None:
        """Send so many events as one batch."""
        self._batches += 1
        self.sending += events

    def end(self, events: int) -> None:
        """A batch of so many events is over."""
        self._batches -= 1
        self.sending -= events
