"""What the parts of a store share: connections, free space, and state in memory."""

from collections import defaultdict
from dataclasses import dataclass, field

from relay.core.delivery import Status
from relay.store.sqlite.disk import Room
from relay.store.sqlite.driver import Connection
from relay.store.sqlite.group_commit import GroupCommit
from relay.store.sqlite.keys import PersonDigests, TokenDigests
from relay.store.sqlite.operator_writes import Moved
from relay.store.sqlite.ordering import OrderingKeys
from relay.store.sqlite.secure_delete import Wiper


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Made once by `open_store`; one process holds the store, so leases are kept in memory."""

    leaser: Connection
    """Reads for deliveries, which no other read delays."""
    reader: Connection
    """Reads for operators."""
    searcher: Connection
    """Reads for operators that may scan the whole store."""
    pager: Connection
    """Reads for operators' pages, in short steps."""
    writer: GroupCommit
    wiper: Wiper
    room: Room
    turns: OrderingKeys
    digests: PersonDigests
    tokens: TokenDigests
    tallies: defaultdict[str, dict[Status, int]]
    """Numbers of pending and dead deliveries, by sink."""
    leased: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Deliveries that a dispatcher may be sending: numbers of their events, by sink."""
    cancelled: set[int] = field(default_factory=set)
    """Replays whose deliveries must not be leased."""

    def count(self, moved: Moved) -> None:
        """Update the tallies by the status changes of a write."""
        for (sink, status), change in moved.items():
            self.tallies[sink][status] += change


class Part:
    """A part of a store."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._reader = shared.reader
        self._searcher = shared.searcher
        self._writer = shared.writer
        self._room = shared.room
