"""What the parts of a store share."""

from collections import Counter
from contextlib import AbstractAsyncContextManager, nullcontext
from uuid import UUID

import msgspec

from relay.core.delivery import Status
from relay.store.keyed_digests import PersonDigests, TokenDigests
from relay.store.ordering import OrderingKeys
from relay.store.postgres import orders
from relay.store.postgres.conditions import PostgresConditions
from relay.store.postgres.connection import Connection
from relay.store.postgres.fences import Fences
from relay.store.postgres.group_commit import GroupCommit
from relay.store.postgres.leases import Leases
from relay.store.postgres.outstanding import Outstanding
from relay.store.postgres.transactions import Transactions
from relay.store.postgres.vacuum import Vacuum
from relay.store.postgres.visible_numbers import VisibleNumbers
from relay.store.repository import Moved, Repository
from relay.store.sql import Database


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Fulfils `relay.store.repository.Connections`; made once by `open_store`."""

    leaser: Connection
    reader: Connection
    searcher: Connection
    pager: Connection
    """Reads for operators' pages, in short steps."""
    writer: GroupCommit
    background: Transactions
    """Longer writes, with more round trips, which acknowledgements do not wait for."""
    digests: PersonDigests
    tokens: TokenDigests
    turns: OrderingKeys
    outstanding: Outstanding
    events: VisibleNumbers
    """Whatever walks forward over events takes its end from here."""
    fences: Fences
    leases: Leases
    """Of this relay's dispatchers."""
    vacuum: Vacuum
    member: UUID
    """This relay, among all that use the store; a new one at each start."""
    ended: Counter[str] = msgspec.field(default_factory=Counter)
    """Deliveries that this relay has ended since its start, by sink."""

    @property
    def conditions(self) -> PostgresConditions:
        return PostgresConditions(self.digests)

    async def draw(self, table: str, /, column: str = "id") -> int:
        """Draw a number, which is missing from the table if it is not used in the end."""
        sql = f"SELECT nextval('relay.{table}_{column}_seq')"
        return await self.reader.read(lambda db: int(db.execute(sql).fetchall()[0][0]))

    @property
    def rollup(self) -> AbstractAsyncContextManager[object]:
        """Each transaction locks what it changes, because other relays count too."""
        return nullcontext()

    def is_leased(self, sink: str, seq: int, /) -> bool:
        return self.leases.is_held(sink, seq)

    def count(self, moved: Moved, /) -> None:
        for (sink, status), change in moved.items():
            if status is Status.PENDING and change < 0:
                self.ended[sink] -= change

    def require_room(self) -> None:
        """Leave it to the server, which refuses what it has no room for."""

    def announce(self, db: Database, /, *, sink_to_try: str | None = None) -> None:
        orders.count(db, sink_to_try)

    def overwrite(self, table: str, /) -> None:
        self.vacuum.start(table)


class PostgresRepository(Repository):
    """A subject of the store, with what only PostgreSQL has."""

    _reader: Connection
    _searcher: Connection
    _background: Transactions

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._shared = shared
        self._writer = shared.writer
