"""A clock that stands still until it is stepped, for a sandbox and a relay on one time."""


class SteppedClock:
    """Fulfils `relay.sandbox.schedule.Steppable`."""

    def __init__(self, ms: int) -> None:
        self._start_ms = self._ms = ms

    def now_ms(self) -> int:
        return self._ms

    def monotonic(self) -> float:
        return (self._ms - self._start_ms) / 1000

    def step_to(self, ms: int) -> None:
        self._ms = max(self._ms, ms)
