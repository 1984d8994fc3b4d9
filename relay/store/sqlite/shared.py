"""What the parts of a store share: connections, free space, and state in memory."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

import msgspec

from relay.core.delivery import Delivery, Status
from relay.core.routing import Verdict
from relay.store.keyed_digests import PersonDigests, TokenDigests
from relay.store.ordering import OrderingKeys
from relay.store.repository import Moved, Repository
from relay.store.sql import Database
from relay.store.sqlite.conditions import SqliteConditions
from relay.store.sqlite.disk import Room
from relay.store.sqlite.driver import Connection
from relay.store.sqlite.group_commit import GroupCommit
from relay.store.sqlite.outstanding import Outstanding
from relay.store.sqlite.secure_delete import Wiper


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Fulfils `relay.store.repository.Connections`; made once by `open_store`.

    One process holds the store, so leases are kept in memory.
    """

    leaser: Connection
    reader: Connection
    searcher: Connection
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
    outstanding: Outstanding
    ended: Counter[str] = msgspec.field(default_factory=Counter)
    """Deliveries that have ended since the store was opened, by sink."""
    leased: defaultdict[str, set[int]] = msgspec.field(default_factory=lambda: defaultdict(set))
    """Deliveries that a dispatcher may be sending: numbers of their events, by sink."""
    cancelled: set[int] = msgspec.field(default_factory=set)
    """Replays whose deliveries must not be leased."""
    superseded: dict[int, Collection[str]] = msgspec.field(default_factory=dict)
    """Reconstructions that are being superseded, by the numbers of their events: the sinks that
    keep their delivery. Those of other sinks must not be leased."""

    @property
    def conditions(self) -> SqliteConditions:
        return SqliteConditions()

    @property
    def background(self) -> GroupCommit:
        """One connection writes all."""
        return self.writer

    async def draw(self, _: str, /) -> None:
        """Leave it to the insertion."""

    def require_room(self) -> None:
        self.room.require()

    def announce(self, _: Database, /, *, sink_to_try: str | None = None) -> None:
        """There is no other relay."""

    def overwrite(self, _: str, /) -> None:
        self.wiper.start()

    def is_leased(self, sink: str, seq: int, /) -> bool:
        return seq in self.leased.get(sink, ())

    def is_withdrawn(self, delivery: Delivery) -> bool:
        """Whether its sink gets the original in its place, or may soon."""
        keepers = self.superseded.get(delivery.seq)
        return keepers is not None and delivery.sink not in keepers

    def count_new(self, verdicts: Iterable[Verdict]) -> None:
        """Update the tallies by the deliveries of a new event."""
        for verdict in verdicts:
            status = Status.DEAD if verdict.outcome == "fails" else Status.PENDING
            self.tallies[verdict.sink][status] += 1

    rollup: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    """Held while the audience by day, or a person in it, is changed in several transactions."""

    def count(self, moved: Moved, /) -> None:
        """Update the tallies by the status changes of a write."""
        for (sink, status), change in moved.items():
            self.tallies[sink][status] += change
            if status is Status.PENDING and change < 0:
                self.ended[sink] -= change


class SqliteRepository(Repository):
    """A subject of the store, with what only SQLite has."""

    _reader: Connection
    _searcher: Connection

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._shared = shared
        self._writer = shared.writer
        self._room = shared.room
