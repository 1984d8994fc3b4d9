"""Protocol and records of reconciliation: what the store knows, and what it was given back."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self

import msgspec
import orjson

from relay.core.event import Event
from relay.core.routing import Verdict
from relay.store.rows import Row, document_of

SENT_RECONSTRUCTED = "not sent, because the sink was sent the reconstruction"
"""Reason of an original's delivery to a sink that has its content already."""

NAMED = "named"
"""The part of a report with personal data."""

RunState = Literal["running", "done", "failed", "cancelled"]

ReconstructionOutcome = Literal["accepted", "known", "arrived", "erased"]
"""What became of a reconstruction.

Known: it was made before. Arrived: the original came during the run. Erased: it names a person
whose data was erased.
"""


FactOutcome = Literal["reconstructed", "unknown", "left"]
"""Unknown: it cannot be known. Left: the next run may find it."""


class Step(NamedTuple):
    """A step that a person reached in a video, as an event said."""

    step: str
    """A milestone, or `lead`."""
    at_ms: int
    """When the event was received, or what it says if it was reconstructed."""
    lead: str | None = None
    """The lead's id; None for a milestone, and for a lead whose body is gone or has no id."""

    @classmethod
    def of(cls, step: str, at_ms: int, body: bytes | None) -> Self:
        """Make a step of its columns; `body` is that of a lead's event."""
        data = (document_of(body) or {}).get("data")
        lead = data.get("id") if isinstance(data, dict) else None
        return cls(step, at_ms, lead if isinstance(lead, str) else None)


class KnownVideo(NamedTuple):
    """A video that events of a source named."""

    id: str
    title: str | None
    changes: Mapping[str, int]
    """Times of receipt by change: created, `ready 2`, `failed 1`, trashed, deleted."""
    seen_ms: int
    """The time of the newest event about it."""


class Place(NamedTuple):
    """Where to go on in the sender's list of views; every view before it was over at `at_ms`."""

    after: str
    at_ms: int


class NamedFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fact that a run gave back or could not, with whom and what it is about."""

    outcome: FactOutcome
    kind: str
    """Of the event that states it."""
    why: str | None = None
    """Why it could not be given back; in a stored report a name, in an answer words."""
    person: str | None = None
    """The folded address."""
    video: str | None = None
    title: str | None = None
    lead: str | None = None
    milestone: str | None = None
    event: str | None = None
    """Id of the reconstructed event."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One reconciliation of one source; times are milliseconds since the epoch."""

    id: int
    source: str
    since_ms: int
    until_ms: int
    dry_run: bool
    begun_ms: int
    ended_ms: int | None
    """None for one under way, and for one that was cut off by the relay's end."""
    state: RunState
    report: Mapping[str, Any] | None

    @classmethod
    def of(cls, row: Row) -> Self:
        """Make a run of its columns, in this order."""
        number, source, since_ms, until_ms, dry, begun_ms, ended_ms, state, report = row
        return cls(
            id=number,
            source=source,
            since_ms=since_ms,
            until_ms=until_ms,
            dry_run=bool(dry),
            begun_ms=begun_ms,
            ended_ms=ended_ms,
            state=state,
            report=None if report is None else orjson.loads(report),
        )

    @property
    def named(self) -> Sequence[NamedFact]:
        """The facts that its report names."""
        return msgspec.convert((self.report or {}).get(NAMED, ()), tuple[NamedFact, ...])

    @property
    def is_whole(self) -> bool:
        """Whether it gave back all that the endpoint receives."""
        return not self.dry_run and not (self.report or {}).get("unrequested")


class Reconstructions(Protocol):
    """Reconstructed events and the runs that make them; all methods may raise StoreError."""

    async def announce(self, source: str) -> None:
        """Note which originals of a source arrive from now on, until `conclude`.

        `accept` makes none of their reconstructions.
        """
        ...

    def conclude(self, source: str) -> None:
        """End an announcement."""
        ...

    async def steps(
        self, source: str, video: str, people: Collection[str]
    ) -> Mapping[str, Sequence[Step]]:
        """Return the steps that people, by address, are known to have reached in a video."""
        ...

    async def erased(self, people: Collection[str]) -> frozenset[str]:
        """Return the addresses among these whose person was erased once."""
        ...

    async def known_since_ms(self, source: str) -> int | None:
        """Return the time of the oldest view or lead of a source; None if there is none."""
        ...

    async def library(self, source: str) -> Sequence[KnownVideo]:
        """Return the videos that events of a source named."""
        ...

    async def forgotten_ms(self) -> int:
        """Return the time before which deletions of videos may have been seen and forgotten."""
        ...

    async def accept(
        self,
        event: Event,
        verdicts: Sequence[Verdict],
        *,
        person: str | None,
        stored: Callable[[ReconstructionOutcome], None],
    ) -> ReconstructionOutcome:
        """Write a reconstruction and its deliveries in one transaction, as `Store.accept` does.

        It adds to no total. `person` is the address that it names; `stored` is called with the
        outcome once it is on disk.
        """
        ...

    async def place(self, source: str) -> Place | None:
        """Return where the last run of a source says that the next may begin to read."""
        ...

    async def begin(
        self, source: str, *, since_ms: int, until_ms: int, dry_run: bool, now_ms: int
    ) -> Run:
        """Store the beginning of a run.

        Raises NotReconciled if another relay has one of this source under way.
        """
        ...

    async def end(
        self,
        run: Run,
        state: RunState,
        *,
        report: Mapping[str, Any] | None,
        place: Place | None,
        now_ms: int,
    ) -> Run:
        """Store the end of a run with its report, and the place for the next one."""
        ...

    async def runs(self, *, before: int | None, limit: int) -> Sequence[Run]:
        """Return the newest runs, those before a number if one is given; they name nobody."""
        ...

    async def run(self, number: int) -> Run | None: ...
