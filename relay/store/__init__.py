"""The protocol of a store, which each engine fulfils in a folder of its own.

No sink waits for an operator's work, nor for another sink's long work. Each call of a connection
waits for those before it, so each engine has one per purpose (its `Shared`): deliveries are leased
on one, acceptances and settlements are written on another, and operators read on others. A
dispatcher that begins waits for the leases' connection alone; one that ends waits for its sends and
for their outcomes.

Long work is done in steps of some 50 ms, and other work takes its turn between them. A walk takes
its end once, when it begins: new rows are the next walk's.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Literal, NamedTuple, Protocol

import msgspec

from relay.core.clock import Clock
from relay.core.config_values import Duration
from relay.core.delivery import Delivery, Settlement
from relay.core.errors import Fault
from relay.core.event import Event, Outcome, Unreadable
from relay.core.request_budget import RequestBudgets
from relay.core.routing import Verdict
from relay.core.totals import Total
from relay.store.absences import Absences
from relay.store.audience.repository import Audience
from relay.store.audit import Audit
from relay.store.backup import Backups
from relay.store.dead_letters import DeadLetters
from relay.store.events import Events
from relay.store.integrity import Inspections
from relay.store.overview import Overview
from relay.store.ownership import Ownership
from relay.store.paused_sinks import PausedSinks
from relay.store.personal_data import PersonalData
from relay.store.quarantine import Quarantine
from relay.store.reconstructions import Reconstructions
from relay.store.replays import Replays
from relay.store.search import Search
from relay.store.sessions import Sessions
from relay.store.sink_states import SinkStates
from relay.store.statistics import Statistics
from relay.store.unreadable import UnreadableRequests


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[store]`: the keys of every engine."""

    changeable: ClassVar[tuple[str, ...]] = ()
    """Keys that a reload can change."""
    type: str
    payload_retention: Duration = Duration.parse("30d")
    """Retention of the bodies of events whose deliveries are all settled."""
    retention: dict[str, Duration] = {}
    """Retention of bodies by kind or glob; the shortest one that matches applies."""
    dedupe_retention: Duration = Duration.parse("90d")
    """Retention of event ids; afterwards a repeated event counts as new."""


Tier = Literal["live", "replay", "tried"]
"""Class of deliveries; leased apart, so that untried live deliveries do not wait for others.

`replay`: opened by a replay; `tried`: failed before, live or replayed.
"""


class LeasedBatch(msgspec.Struct, frozen=True):
    """Deliveries that belong to the caller until it settles or releases them.

    `damaged` ones must not be sent, because their stored body differs from the received one.
    `next_due_ms` is the time of the next lease: now if a limit was reached, else when the next
    delivery of the requested tiers is due, None if there is none.
    """

    deliveries: tuple[Delivery, ...]
    next_due_ms: int | None
    damaged: tuple[Delivery, ...] = ()


class Backlog(msgspec.Struct, frozen=True):
    """Backlog of one sink; `oldest_ms` is the receipt of its oldest pending event."""

    pending: int = 0
    dead: int = 0
    oldest_ms: int | None = None
    retrying: int = 0
    """Pending deliveries that wait for the time of their next try; 0 where another relay counts."""
    ended: int = 0
    """Deliveries that had ended at this relay, since its start, when `pending` was counted."""


class FirstDue(msgspec.Struct, frozen=True, kw_only=True):
    """What one sink could send next."""

    due_ms: int | None = None
    """Earliest due time of its due deliveries that are not under way; None if none may be sent."""
    is_held: bool = False
    """Whether deliveries wait for earlier ones of their ordering key."""


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """What this process would meet when it opened a store."""

    fault: Fault | None = None
    """Why it could not open or create the store."""
    warnings: tuple[Fault, ...] = ()
    """Why it could, and the store would not serve well."""
    is_missing: bool | None = None
    """Whether the opening would create it; None if only a connection could tell."""


class StoreWarning(msgspec.Struct, frozen=True):
    """A reason not to trust the disk or the engine, as a log line."""

    event: str
    fields: Mapping[str, str]
    needs_action: bool = False
    """Whether the verdict names it; its fields are a reason and an advice then."""


class Reached(NamedTuple):
    """What a connection to the database of a store has found."""

    text: str
    warnings: Sequence[StoreWarning]


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """Space on the disk of a store that has one of its own."""

    free_bytes: int
    min_free_bytes: int
    """With less free space, nothing is accepted."""
    log_bytes: int
    """What its write-ahead log holds, all of which an open reader may keep there."""


Offer = Callable[[Delivery], bool]
"""Takes a leased delivery, or declines it, which ends the lease."""


class EngineVersion(NamedTuple):
    """An engine and its version, such as `sqlite` and `3.51.0`."""

    engine: str
    version: str


class Store(Protocol):
    """The durable half of the relay.

    Changes are on disk when a method returns. All methods may raise StoreFull, after which nothing
    was written and later calls may succeed, and StoreBroken.
    """

    @property
    def clock(self) -> Clock:
        """The clock of all that is stored: one for all relays that share the store."""
        ...

    @property
    def ownership(self) -> Ownership: ...

    @property
    def events(self) -> Events: ...

    @property
    def dead_letters(self) -> DeadLetters: ...

    @property
    def replays(self) -> Replays: ...

    @property
    def paused_sinks(self) -> PausedSinks: ...

    @property
    def search(self) -> Search: ...

    @property
    def personal_data(self) -> PersonalData: ...

    @property
    def quarantine(self) -> Quarantine: ...

    @property
    def unreadable(self) -> UnreadableRequests: ...

    @property
    def absences(self) -> Absences: ...

    @property
    def reconstructions(self) -> Reconstructions: ...

    @property
    def audience(self) -> Audience: ...

    @property
    def statistics(self) -> Statistics: ...

    @property
    def audit(self) -> Audit: ...

    @property
    def sessions(self) -> Sessions: ...

    @property
    def request_budgets(self) -> RequestBudgets: ...

    @property
    def sink_states(self) -> SinkStates: ...

    @property
    def backups(self) -> Backups: ...

    @property
    def inspections(self) -> Inspections: ...

    @property
    def location(self) -> str:
        """Location of the store, for logs and messages."""
        ...

    @property
    def folder(self) -> str | None:
        """Return its folder on this machine; None if it is elsewhere."""
        ...

    @property
    def version(self) -> EngineVersion:
        """Version of the engine."""
        ...

    @property
    def unclean(self) -> bool:
        """Whether the last relay did not close it, and no inspection has passed since."""
        ...

    def warnings(self) -> Sequence[StoreWarning]:
        """Return the warnings that are known at the start."""
        ...

    def adopted(self, settings: StoreSettings) -> AbstractAsyncContextManager[None]:
        """Use what of new settings can change while the store is open, unless the block raises.

        It is tried before. Raises StoreError, and nothing has changed then.
        """
        ...

    async def size_bytes(self) -> int:
        """Return the disk space that the store uses, as of some seconds ago at most."""
        ...

    def space(self) -> Space | None:
        """Return the space that is left for it; None if it is not on a disk of this machine."""
        ...

    def totals(self, source: str) -> Iterable[Total]:
        """Return the counts of all events ever accepted from a source."""
        ...

    async def inspect(self) -> None:
        """Read the whole store after an unclean stop; raises StoreBroken for a damaged one."""
        ...

    def is_leased(self, sink: str, seq: int) -> bool:
        """Whether a dispatcher may be sending this delivery."""
        ...

    async def accept(
        self,
        event: Event,
        verdicts: Sequence[Verdict],
        stored: Callable[[Outcome], None],
        offer: Offer | None = None,
    ) -> Outcome:
        """Write the event and one delivery per verdict, in one transaction.

        The delivery is a dead letter if the rule failed. One with an ordering key is held until the
        earlier ones of its sink and key have ended.
        The original of a reconstruction marks it as superseded, is not sent to sinks that were sent
        the reconstruction, and withdraws it from the others.
        A known `(source, id)` changes nothing: duplicate for the same body, conflict for another.
        `stored` is called with the outcome once it is on disk, even if the caller was cancelled.
        Right before it, the store may lease deliveries of the new event that are due, and `offer`
        them; all others have to be found by `lease`.
        """
        ...

    async def keep(self, unreadable: Unreadable, stored: Callable[[Outcome], None]) -> Outcome:
        """Write a request without a usable event, once per body; the outcome is `unreadable`.

        `stored` is called as by `accept`.
        """
        ...

    async def lease(self, sink: str, *, now_ms: int, limits: Mapping[Tier, int]) -> LeasedBatch:
        """Lease the longest due deliveries of a sink, tier by tier.

        `limits` are the maximum numbers by tier; other tiers are skipped. Large bodies reduce the
        number, in which case the next ones are due now.
        """
        ...

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Return leased deliveries unchanged; they are due at once."""
        ...

    async def settle(self, *settlements: Settlement) -> None:
        """Record attempts, update their deliveries, and end the leases.

        A delivery that has changed since its lease stays as it is.
        """
        ...

    async def bring_forward(
        self, sink: str, *, beyond_ms: int, to_ms: int, now_ms: int, only: int | None = None
    ) -> int:
        """Make tried deliveries that are due after `beyond_ms` due at `to_ms`, untried ones now.

        Deliveries held by their ordering key stay held. `only` limits it to one event, by its
        number. Returns the number of deliveries whose time has changed.
        """
        ...

    async def reclaim(self, sink: str) -> None:
        """End all leases of a sink whose dispatcher has stopped.

        Earlier settlements are written or have failed when this returns.
        """
        ...

    async def backlogs(self) -> Mapping[str, Backlog]:
        """Return the backlog of every sink that ever had a delivery; no time is in the future."""
        ...

    async def first_due(self, sinks: Mapping[str, int], *, now_ms: int) -> Mapping[str, FirstDue]:
        """Return what each of the sinks could send next, leased or not.

        For each is passed how many of its due deliveries are under way: so many are left out.
        """
        ...

    async def overview(self, sinks: Collection[str]) -> Overview:
        """Return figures for the verdict; `sinks` are those with dead letters."""
        ...

    async def probe(self, *, size: int) -> None:
        """Accept an event with a body of this size, take it back, and commit a row.

        It takes the way of any acceptance, and neither stores nor counts anything.
        """
        ...

    async def respond(self) -> None:
        """Return once the writer's thread has a turn, so not while the disk hangs."""
        ...

    async def expire(self, *, now_ms: int) -> bool:
        """Do one small step of retention; True if more may be left.

        Of the relays that share a store, only the one with the `MAINTENANCE` does any.
        """
        ...

    async def close(self) -> None:
        """Checkpoint the store, mark it as closed cleanly, and close it.

        Raises StoreBroken, after closing everything, if damage is found only now.
        """
        ...
