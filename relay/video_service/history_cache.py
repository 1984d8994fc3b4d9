"""Watch histories in memory, by person: a bounded number, each for a bounded time."""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from relay.core.clock import Clock
from relay.core.event import folded
from relay.core.watch_history import KeptHistory, WatchHistory

PERSONS_MAX = 1000
"""The oldest entry is evicted first."""

KEPT_S = 600.0


class PersonKey(NamedTuple):
    """A person, as far as one source's API knows them."""

    source: str
    person: str
    """The folded address."""

    @classmethod
    def of(cls, source: str, address: str) -> "PersonKey":
        return cls(source, person_of(address))


class HistoryCache:
    """Histories that are not older than `KEPT_S`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[PersonKey, tuple[KeptHistory, float]] = OrderedDict()
        """With the end of their time, by the monotonic clock; the oldest come first."""

    def keep(self, key: PersonKey, history: WatchHistory) -> None:
        self._kept.pop(key, None)
        kept = KeptHistory(source=key.source, at_ms=self._clock.now_ms(), history=history)
        self._kept[key] = (kept, self._clock.monotonic() + KEPT_S)
        if len(self._kept) > PERSONS_MAX:
            self._kept.popitem(last=False)

    def find(self, key: PersonKey) -> WatchHistory | None:
        self._expire()
        kept = self._kept.get(key)
        return None if kept is None else kept[0].history

    def of(self, person: str) -> list[KeptHistory]:
        """Return all of a person, by the folded address."""
        self._expire()
        return [kept for key, (kept, _) in self._kept.items() if key.person == person]

    def drop(self, concerns: Callable[[PersonKey], bool]) -> None:
        """Drop those of some keys."""
        for key in [key for key in self._kept if concerns(key)]:
            del self._kept[key]

    def _expire(self) -> None:
        now_s = self._clock.monotonic()
        while self._kept:
            key, (_, until_s) = next(iter(self._kept.items()))
            if now_s < until_s:
                return
            del self._kept[key]


def person_of(address: str) -> str:
    """Return the folded address."""
    return folded(address.strip())
