"""Which sinks this relay dispatches: all, or its share where several relays share a store."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from relay.core.config_values import Duration
from relay.core.errors import StoreTooNew
from relay.core.sink_status import SinkStatus

MAINTENANCE = ":maintenance"
"""Owned like a sink, for what one relay at a time does; no sink's name begins like this."""

RECONSTRUCTIONS = ":reconstructions"
"""Announced like a sink with new deliveries: there are new reconstructions."""

ApplyOrders = Callable[[Collection[str]], Awaitable[None]]
"""Takes over what operators have ordered at any relay; passed the sinks to be tried at once.

Raises StoreError; it is called again then.
"""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One relay of those that share a store; times are milliseconds since the epoch."""

    name: str
    version: str
    revision: str
    """Of its code, which tells builds of one version apart; empty where it is unknown."""
    address: str
    """Of its admin listener."""
    since_ms: int
    beat_ms: int
    """Time of its last heartbeat."""
    config: str
    """Digest of its settings, without secrets."""
    sinks: tuple[str, ...]
    """The sinks that it dispatches."""
    is_away: bool
    """Whether it did not leave, and its heartbeats have stopped."""
    is_self: bool


class FreeSink(msgspec.Struct, frozen=True, kw_only=True):
    """A sink that no relay dispatches, although there is one that could."""

    name: str
    since_ms: int


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The relays that share a store, the same at each of them."""

    members: tuple[Member, ...]
    """By name; without those that left."""
    free: tuple[FreeSink, ...]
    """The sinks that have been without an owner for longer than a takeover takes."""

    @property
    def live(self) -> Sequence[Member]:
        return [each for each in self.members if not each.is_away]

    @property
    def away(self) -> Sequence[Member]:
        return [each for each in self.members if each.is_away]

    @property
    def configs(self) -> Mapping[str, Sequence[str]]:
        """The live members' names by the digests of their configs."""
        digests = sorted({each.config for each in self.live})
        return {
            digest: [each.name for each in self.live if each.config == digest] for digest in digests
        }


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """What a relay tells the others of itself."""

    name: str
    version: str
    revision: str
    address: str
    config: str


class Dispatching(Protocol):
    """The dispatchers, as far as ownership drives them."""

    async def begin(self, sink: str) -> None:
        """Start to send; harmless for a sink that is not configured."""
        ...

    async def end(self, sink: str, *, grace: Duration) -> None:
        """Start nothing more, and return once nothing is in flight.

        Sends that still run after the grace are cancelled. Outcomes are settled, or given up.
        """
        ...

    def wake(self, sink: str) -> None:
        """Say that the sink may have a delivery due."""
        ...

    def statuses(self) -> Mapping[str, SinkStatus]:
        """Return how each sink is doing."""
        ...


class Ownership(Protocol):
    """Of a store's sinks."""

    def holds(self, sink: str) -> bool:
        """Return whether this relay dispatches the sink, or does the `MAINTENANCE`."""
        ...

    def may_send(self, sink: str) -> bool:
        """Return whether a send may start now; to be asked right before each."""
        ...

    def introduce(self, me: Introduction) -> None:
        """Tell the others this from now on."""
        ...

    def configure(self, sinks: Iterable[str]) -> None:
        """Dispatch these sinks from now on."""
        ...

    def statuses(self) -> Mapping[str, SinkStatus]:
        """Return how the sinks are doing that another relay dispatches, as it said last."""
        ...

    async def cluster(self) -> Cluster | None:
        """Return the relays that share the store; None where only one can hold it.

        Raises StoreError.
        """
        ...

    async def run(self, dispatching: Dispatching, apply_orders: ApplyOrders) -> None:
        """Begin and end dispatching as ownership changes, until `leave` is done."""
        ...

    async def leave(self) -> None:
        """Hand all sinks over; raises nothing."""
        ...

    async def outdated(self) -> StoreTooNew:
        """Return why this relay has to end, once a newer one has migrated the schema beyond it.

        The store writes no event and no outcome any more.
        """
        ...


class SoleOwner:
    """Fulfils `Ownership` for a store that one relay holds."""

    def holds(self, _: str) -> bool:
        return True

    def may_send(self, _: str) -> bool:
        return True

    def introduce(self, me: Introduction) -> None:
        """There are no others."""

    def configure(self, sinks: Iterable[str]) -> None:
        """Whatever they are."""

    def statuses(self) -> Mapping[str, SinkStatus]:
        return {}

    async def cluster(self) -> None:
        return None

    async def run(self, dispatching: Dispatching, apply_orders: ApplyOrders) -> None:
        """Nothing ever changes, and all orders come to this relay."""

    async def leave(self) -> None:
        """Do nothing: no other relay waits for the sinks."""

    async def outdated(self) -> StoreTooNew:
        """Wait for ever: this relay holds the store."""
        never: asyncio.Future[StoreTooNew] = asyncio.get_running_loop().create_future()
        return await never
