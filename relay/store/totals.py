"""Numbers of accepted events by kind, in memory as in the store."""

from collections.abc import Iterable, Iterator

from relay.core.event import Event
from relay.core.totals import Total


class Totals:
    """Holds all totals of a store."""

    def __init__(self, known: Iterable[Total] = ()) -> None:
        self._known = {(each.source, each.kind, each.milestone): each for each in known}

    def of(self, event: Event) -> Total:
        """Return the total that the event adds to."""
        key = event.source, event.known_kind, event.milestone() or ""
        return self._known.get(key) or self._known.setdefault(key, Total(*key))

    def of_source(self, source: str) -> Iterator[Total]:
        """Return the totals of one source that are not 0."""
        return (each for each in self._known.values() if each.source == source and each.events)

    def learn(self, totals: Iterable[Total]) -> Iterator[Total]:
        """Take over totals that were read from the store; return those that have grown.

        They only grow, and what was read may be older than what was counted here since.
        """
        for read in totals:
            key = read.source, read.kind, read.milestone
            known = self._known.setdefault(key, Total(*key))
            if read.events > known.events:
                known.events = read.events
                known.last_ms = max(known.last_ms, read.last_ms)
                yield known
