"""Totals of a person's data that is found or removed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from relay.core.delivery import Status
from relay.store.email_matcher import EmailMatcher
from relay.store.personal_data import Erasure, SentEvents, UnderWay

NAMES = (
    "events",
    "unreadable",
    "quarantine",
    "excerpts",
    "reasons",
    "searches",
    "views",
    "videos",
    "reports",
    "kept_ids",
)
"""Names of places, which are fields of `Erasure`."""


class Traces(msgspec.Struct):
    """Sums over rows of any places."""

    rows: Counter[str] = msgspec.field(default_factory=Counter)
    """Counts by the names of the places."""
    moved: Counter[tuple[str, Status]] = msgspec.field(default_factory=Counter)
    """Changes of the numbers of deliveries, by sink and status."""
    sent: Counter[tuple[str, str, bool]] = msgspec.field(default_factory=Counter)
    """Counts by sink, kind, and whether the sink has confirmed it."""
    last_ms: dict[tuple[str, str, bool], int] = msgspec.field(default_factory=dict)
    discarded: dict[tuple[int, str], UnderWay] = msgspec.field(default_factory=dict)
    """Discarded deliveries, by event and sink."""
    owned: set[tuple[int, str]] = msgspec.field(default_factory=set)
    """Those of them that were due, and whose sink a relay owns, where several share the store."""

    @classmethod
    def of(cls, erasure: Erasure) -> "Traces":
        """Return the sums that gave this result, without the deliveries."""
        traces = cls(rows=Counter({name: getattr(erasure, name) for name in NAMES}))
        traces.moved["", Status.PENDING] = -erasure.pending
        traces.moved["", Status.DEAD] = -erasure.dead
        for sent, is_confirmed in ((erasure.told, True), (erasure.unconfirmed, False)):
            for each in sent:
                traces.sent[each.sink, each.kind, is_confirmed] = each.count
                traces.last_ms[each.sink, each.kind, is_confirmed] = each.last_ms
        return traces

    def add(self, other: "Traces") -> None:
        self.rows.update(other.rows)
        self.moved.update(other.moved)
        self.sent.update(other.sent)
        for key, ms in other.last_ms.items():
            self.last_ms[key] = max(ms, self.last_ms.get(key, 0))
        self.discarded |= other.discarded
        self.owned |= other.owned

    def count_sent(self, sink: str, kind: str, last_ms: int, *, is_confirmed: bool) -> None:
        """Count an event that a sink was sent."""
        key = (sink, kind, is_confirmed)
        self.sent[key] += 1
        self.last_ms[key] = max(last_ms, self.last_ms.get(key, 0))

    def count_discarded(self, sink: str, before: Status) -> None:
        """Count a delivery that is discarded."""
        self.moved[sink, before] -= 1
        self.moved[sink, Status.DISCARDED] += 1

    def erasure(self, under_way: Sequence[UnderWay], *, wiped: bool, remains: str) -> Erasure:
        return Erasure(
            **{name: self.rows[name] for name in NAMES},
            pending=self._discarded(Status.PENDING),
            dead=self._discarded(Status.DEAD),
            told=self._sent(is_confirmed=True),
            unconfirmed=self._sent(is_confirmed=False),
            under_way=under_way,
            wiped=wiped,
            remains=remains,
        )

    def _discarded(self, before: Status) -> int:
        return -sum(count for (_, status), count in self.moved.items() if status is before)

    def _sent(self, *, is_confirmed: bool) -> list[SentEvents]:
        return [
            SentEvents(key[0], key[1], count, self.last_ms[key])
            for key, count in sorted(self.sent.items())
            if key[2] is is_confirmed
        ]


class Matches(NamedTuple):
    """Keys of rows, with their sizes; `next` is the next key to search, None at the end."""

    rows: list[tuple[int, int]]
    next: int | None


class Place(Protocol):
    """Rows of one table, counted under `name` if one of their columns contains the address."""

    @property
    def name(self) -> str: ...

    @property
    def is_kept(self) -> bool:
        """Whether its rows stay."""
        ...

    @property
    def weight(self) -> int:
        """Number of usual rows whose removal takes as long as that of one of these."""
        ...


def matches(
    candidates: Iterable[Sequence[Any]],
    address: EmailMatcher,
    following: int | None,
) -> Matches:
    """Return the rows, by key and contents, that contain the address.

    Two rows of one key are removed together.
    """
    sizes = {
        key: sum(len(each or "") for each in contents)
        for key, *contents in candidates
        if any(address.stands_in(each) for each in contents)
    }
    return Matches(list(sizes.items()), following)
