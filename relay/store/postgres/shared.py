"""What the parts of a store share."""

from collections import Counter
from uuid import UUID

import msgspec

from relay.store.keyed_digests import PersonDigests, TokenDigests
from relay.store.ordering import OrderingKeys
from relay.store.postgres.connection import Connection
from relay.store.postgres.fences import Fences
from relay.store.postgres.group_commit import GroupCommit
from relay.store.postgres.leases import Leases
from relay.store.postgres.outstanding import Outstanding
from relay.store.postgres.transactions import Transactions
from relay.store.postgres.vacuum import Vacuum
from relay.store.postgres.visible_numbers import VisibleNumbers


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Made once by `open_store`."""

    leaser: Connection
    """Reads for deliveries, which no other read delays."""
    reader: Connection
    """Reads for operators."""
    searcher: Connection
    """Reads for operators that may scan the whole store."""
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


class Part:
    """A part of a store."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._reader = shared.reader
        self._searcher = shared.searcher
        self._writer = shared.writer
