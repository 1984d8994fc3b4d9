"""Statements that the planner sends to the database, and their answers.

Each statement is one transaction of one round trip. An answer may be lost although the statement
ran, and a statement whose answer was lost may still run later.
"""

from typing import NamedTuple

import msgspec


class Fence(NamedTuple):
    """Identifies one acquisition of a sink, together with its holder."""

    history: str
    """The database's history: changes with each failover, which may have lost commits."""
    number: int
    """Increases with each acquisition of the sink within one history."""


class Beat(msgspec.Struct, frozen=True):
    """Record that this member is alive, and renew its leases.

    Also creates the ownership rows that its sinks lack, and records the server's start if this
    is the first beat after it.
    """

    member: str
    sinks: tuple[str, ...]
    """The sinks that the member is ready to dispatch."""
    leases: tuple[tuple[str, Fence], ...]


class Renewed(msgspec.Struct, frozen=True):
    """The renewed leases: still held, not expired, and of the database's present history."""

    leases: frozenset[tuple[str, Fence]]


class Survey(msgspec.Struct, frozen=True):
    """Read the members and the ownership rows, and what a poll reads; writes nothing."""


class OwnershipRow(msgspec.Struct, frozen=True):
    """Ownership of one sink."""

    sink: str
    holder: str | None
    version: int
    """Increases with each change of the row, renewals included."""
    expired: bool
    """By the database's clock; also if it expires later than `LEASE_S` from now.

    Only a clock that was set back leaves such a row.
    """


class Surveyed(msgspec.Struct, frozen=True):
    """The members and the ownership rows, in one snapshot."""

    history: str
    start: str
    """Identifies the server's run: changes with each restart and each failover."""
    fresh: bool
    """Whether the first beat of this run was less than `LEASE_S` ago, or is still to come."""
    members: dict[str, frozenset[str]]
    """Sinks of each member that has sent a beat within `LEASE_S`."""
    rows: tuple[OwnershipRow, ...]
    is_news: bool = False
    """Whether any sink may have due deliveries that were not read before."""


class Acquire(msgspec.Struct, frozen=True):
    """Take over sinks whose rows are as they were surveyed.

    Takes a row only if its version is the same, in the same run of the server, and it is free,
    expired, or held by this member. Skips rows that are locked.
    """

    member: str
    history: str
    start: str
    rows: tuple[tuple[str, int], ...]
    """Sinks with the versions of their rows."""


class Acquired(msgspec.Struct, frozen=True):
    """The leases that were acquired."""

    leases: tuple[tuple[str, Fence], ...]


class Release(msgspec.Struct, frozen=True):
    """Free a sink, if it is still held under this fence."""

    member: str
    sink: str
    fence: Fence


class Leave(msgspec.Struct, frozen=True):
    """Remove this member, and free all that it holds."""

    member: str


class Poll(msgspec.Struct, frozen=True):
    """Ask which of these sinks have due deliveries that were not read before."""

    sinks: tuple[str, ...]


class Polled(msgspec.Struct, frozen=True):
    """The sinks with due deliveries."""

    sinks: frozenset[str]


class Released(msgspec.Struct, frozen=True):
    """Answer to a release or a departure."""


Control = Beat | Survey | Acquire | Release | Leave
"""Statements of which a member has one on its way at a time."""

Statement = Control | Poll
Answer = Renewed | Surveyed | Acquired | Polled | Released
