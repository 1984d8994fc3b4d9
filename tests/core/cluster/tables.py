"""The rows of the modelled database, and the statements that only a store sends."""

from typing import Any, NamedTuple

import msgspec

from relay.core.cluster.statements import Fence

EventId = tuple[int, int]
"""An ordering key, and a number that rises within it."""

GONE: Any = object()
"""The new value of a deleted row."""


class Ownership(NamedTuple):
    holder: str | None
    fence: int
    version: int
    expires_at: float


class Insert(NamedTuple):
    """Accept an event."""

    member: str
    event: EventId
    sinks: tuple[str, ...]


class Confirm(NamedTuple):
    """Look an event up, and write."""

    member: str
    event: EventId


class FenceGuard(msgspec.Struct, frozen=True):
    """Condition of each read and each settlement of a sink's deliveries.

    The sink is held by this member under this fence, in the database's present history, and the
    lease has not expired. A settlement locks the ownership row (FOR SHARE) in its own statement: a
    fence that is only read may change before the commit. A refusal is reported to the planner as
    `fenced`. A settlement without an answer runs again as it is: it changes only deliveries that
    still have the number of attempts that it names.
    """

    member: str
    sink: str
    fence: Fence


class Read(NamedTuple):
    """Read pending deliveries; the answer is None if the guard fails."""

    guard: FenceGuard


class Pending(NamedTuple):
    seq: int
    event: EventId
    attempts: int


class Outcome(NamedTuple):
    seq: int
    attempts: int
    delivered: bool


class Settle(NamedTuple):
    """Write the outcomes of attempts."""

    guard: FenceGuard
    outcomes: tuple[Outcome, ...]


class Settled(msgspec.Struct, frozen=True):
    owned: bool


class Tables:
    """Committed rows; a change is (table, key, value)."""

    def __init__(self, sinks: tuple[str, ...]) -> None:
        self.members: dict[str, tuple[frozenset[str], float]] = {}
        self.ownership: dict[str, Ownership] = {}
        self.runs: dict[tuple[str, str], float] = {}
        self.events: dict[EventId, int] = {}
        self.ids: dict[int, EventId] = {}
        self.pending: dict[str, dict[int, int]] = {sink: {} for sink in sinks}


Change = tuple[dict[Any, Any], Any, Any]


class Commit:
    """A transaction in the write-ahead log."""

    __slots__ = ("changes", "is_visible", "received_at", "undo")

    def __init__(self, changes: list[Change], received_at: float) -> None:
        self.changes = changes
        self.received_at = received_at
        """When the standby has it, infinity while it is away."""
        self.undo: list[Change] = []
        self.is_visible = False

    def apply(self) -> None:
        self.is_visible = True
        for table, key, value in self.changes:
            self.undo.append((table, key, table.get(key, GONE)))
            _write(table, key, value)

    def revert(self) -> None:
        for table, key, value in reversed(self.undo):
            _write(table, key, value)


def _write(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is GONE:
        table.pop(key, None)
    else:
        table[key] = value
