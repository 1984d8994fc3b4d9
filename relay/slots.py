"""How much of one sink is on its way, and whether there is room for more (pure)."""

UNSETTLED = 4
UNSETTLED_MAX = 256
"""Outcomes that wait for the disk while others are sent: so many per slot, and at most in all."""


class Slots:
    """The events that are being sent at once, and the batches that they are in."""

    def __init__(self, slots: int, batch: int) -> None:
        self._slots = slots
        self._batches_max = slots // batch
        self._unsettled_max = min(UNSETTLED * slots, UNSETTLED_MAX)
        self._batches = 0
        self.sending = 0

    def has_room(self, *, unsettled: int, alone: bool) -> bool:
        """Whether one more event may start; `alone` is with nothing beside it."""
        if alone:
            return not self.sending and not unsettled
        return (
            self._batches < self._batches_max
            and self.sending < self._slots
            and unsettled < self._unsettled_max
        )

    def take(self) -> None:
        """Send one more event."""
        self.sending += 1

    def begin(self) -> None:
        """Send the events that were taken as one batch."""
        self._batches += 1

    def end(self, events: int) -> None:
        """A batch of so many events is over."""
        self._batches -= 1
        self.sending -= events
