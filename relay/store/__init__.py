"""The protocol of a store, which each engine fulfils in a folder of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from relay.core.config_values import Duration, Size
from relay.core.delivery import Delivery, Settlement
from relay.core.event import Event, Outcome, Unreadable
from relay.core.routing import Verdict
from relay.core.totals import Total
from relay.store.absences import Absences
from relay.store.audience import Audience
from relay.store.audit import Audit
from relay.store.backup import Backups
from relay.store.integrity import Inspections
from relay.store.operations import Operations
from relay.store.personal_data import PersonalData
from relay.store.quarantine import Quarantine
from relay.store.unreadable import UnreadableRequests


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[store]`."""

    type: Literal["sqlite"] = "sqlite"
    path: str = "data/relay.db"
    payload_retention: Duration = Duration.parse("30d")
    """Bodies of events whose deliveries are all settled are kept this long."""
    retention: dict[str, Duration] = {}
    """The same for single kinds or globs of them; where several fit, the shortest counts."""
    dedupe_retention: Duration = Duration.parse("90d")
    """Event ids are kept this long; after it a known event would count as new."""
    min_free: Size = Size.parse("256MiB")
    """Below this much free space nothing is accepted, while there is still room to settle."""


Tier = Literal["live", "replay", "tried"]
"""Leased apart, so that live deliveries that were never tried need not wait for others.

`replay` are those that a replay has opened, `tried` those of either kind that have failed.
"""


@dataclass(frozen=True, slots=True)
class Lease:
    """Deliveries that are the caller's until settled or released.

    `damaged` ones are not to be sent: their body is another than the one that was received.
    `next_due_ms` is when to look again: now where a limit was reached, else when the next delivery
    of the tiers that were asked for comes due, or None if there is none.
    """

    deliveries: tuple[Delivery, ...]
    next_due_ms: int | None
    damaged: tuple[Delivery, ...] = ()


@dataclass(frozen=True, slots=True)
class Backlog:
    """What one sink has before it; `oldest_ms` is the receipt of its oldest pending event."""

    pending: int = 0
    dead: int = 0
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StoreWarning:
    """Something that the store rests on and that cannot be trusted; a log line of its own."""

    event: str
    fields: Mapping[str, str]


class Store(Protocol):
    """The durable half of the relay; every `now_ms` is passed in.

    All methods may raise StoreFull (nothing was written; goes on by itself) and StoreBroken.
    What has returned is on disk.
    """

    @property
    def operations(self) -> Operations: ...

    @property
    def personal_data(self) -> PersonalData: ...

    @property
    def quarantine(self) -> Quarantine: ...

    @property
    def unreadable(self) -> UnreadableRequests: ...

    @property
    def absences(self) -> Absences: ...

    @property
    def audience(self) -> Audience: ...

    @property
    def audit(self) -> Audit: ...

    @property
    def backups(self) -> Backups: ...

    @property
    def inspections(self) -> Inspections: ...

    @property
    def path(self) -> Path:
        """Where the store is, for log lines and people."""
        ...

    @property
    def unclean(self) -> bool:
        """Whether the last relay ended without closing it, and it was not found sound since."""
        ...

    def warnings(self) -> Sequence[StoreWarning]:
        """Reasons not to trust the disk or the engine, known at the start."""
        ...

    def size_bytes(self) -> int:
        """Disk space that the store takes."""
        ...

    def free_bytes(self) -> int:
        """Room that is left for it."""
        ...

    def totals(self, source: str) -> Iterable[Total]:
        """Counts of all events ever accepted from a source."""
        ...

    async def inspect(self) -> None:
        """Read the whole store after an unclean stop; raises StoreBroken for a damaged one."""
        ...

    def is_leased(self, sink: str, seq: int) -> bool:
        """Whether a dispatcher may be sending this delivery."""
        ...

    async def accept(
        self, event: Event, verdicts: Sequence[Verdict], stored: Callable[[Outcome], None]
    ) -> Outcome:
        """Write the event and one delivery per verdict, a dead one where the rule failed, at once.

        `stored` is called with the outcome once that is on disk, also if nobody waits any more.
        What has a key waits for what of the same sink and key was accepted before and is pending.
        A known `(source, id)` changes nothing: duplicate for the same body, conflict for another.
        """
        ...

    async def keep(self, unreadable: Unreadable, stored: Callable[[Outcome], None]) -> Outcome:
        """Write a raw request without a usable event; always `unreadable`, the same body kept once.

        `stored` is as with `accept`.
        """
        ...

    async def lease(self, sink: str, *, now_ms: int, limits: Mapping[Tier, int]) -> Lease:
        """Hand out the longest due deliveries of a sink that are not leased, tier by tier.

        `limits` says how many of each tier at most; one that it does not name is not looked at.
        Large bodies make it fewer, and then the next ones are due now.
        """
        ...

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Give leased deliveries back unchanged; they are due at once."""
        ...

    async def settle(self, *settlements: Settlement) -> None:
        """Record attempts and move their deliveries; ends their leases.

        A delivery that has moved since it was leased stays as it is.
        """
        ...

    async def bring_forward(
        self, sink: str, *, beyond_ms: int, to_ms: int, now_ms: int, only: int | None = None
    ) -> int:
        """Have tried deliveries that are due after `beyond_ms` come due at `to_ms` instead.

        Those never tried come due now where they were due later. Deliveries that wait for another
        of their turn go on waiting. `only` is the number of the one event that is meant.
        Returns how many came due earlier.
        """
        ...

    async def reclaim(self, sink: str) -> None:
        """Give back all that is leased of a sink, once nobody sends to it any more.

        What was to be settled before is settled or has failed when this returns.
        """
        ...

    async def backlogs(self) -> Mapping[str, Backlog]:
        """The backlog of every sink that ever had a delivery; no receipt lies in the future."""
        ...

    async def probe(self, *, now_ms: int) -> None:
        """Commit one small write, to know that the store can; raises StoreFull below the floor."""
        ...

    async def respond(self) -> None:
        """Return once the writer has come round to it: never while it is stuck."""
        ...

    async def expire(self, *, now_ms: int) -> bool:
        """Do one small step of retention; True if there may be more to do."""
        ...

    async def close(self) -> None:
        """Write everything home and mark the store as closed cleanly.

        Raises StoreBroken, once all is closed, where that is found only now.
        """
        ...
