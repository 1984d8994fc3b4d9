"""Reconciliation: what the store knows, and what it was given back."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import msgspec
import orjson
from msgspec.structs import replace

from relay.core.event import Event
from relay.core.routing import Verdict
from relay.store.audience.counting import ID_CHARS
from relay.store.audience.repository import Audience
from relay.store.repository import Repository, row, rows
from relay.store.rows import Row, document_of
from relay.store.sql import Database, Sql

PEOPLE_MAX = 500
"""People per query, because SQLite reads the views of a video once for each."""

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


class ReachedStep(NamedTuple):
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


class ReadPosition(NamedTuple):
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


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
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


_STEPS = Sql("""
SELECT w.person, w.step, w.at, e.body FROM (
    SELECT person, step, min(at) AS at, CASE WHEN step = 'lead' THEN event ELSE 0 END AS lead
    FROM main.audience
    WHERE video = (SELECT number FROM main.videos WHERE id = :video_id) AND source = :source
        AND person IN (SELECT CAST(value AS bigint) FROM json_each(:people) AS x)
    GROUP BY 1, 2, 4
) AS w LEFT JOIN main.events AS e ON e.seq = w.lead
""")
_SINCE = Sql("SELECT at FROM main.audience WHERE source = :source ORDER BY at LIMIT 1")
_FORGOTTEN = Sql("SELECT value FROM main.state WHERE name = 'library'")
_PLACE = Sql("SELECT place, at FROM main.reconciled_places WHERE source = :source")
_KEEP_PLACE = Sql("""
INSERT INTO main.reconciled_places (source, place, at) VALUES (:source, :place, :at)
ON CONFLICT (source) DO UPDATE SET place = excluded.place, at = excluded.at
""")
_END = Sql("""
UPDATE main.reconciliations SET state = :state, ended_at = :now, report = :report WHERE id = :id
""")


class Reconstructions(Repository, ABC):
    """Reconstructed events and the runs that make them; all methods may raise StoreError."""

    _audience: Audience

    @abstractmethod
    async def announce(self, source: str) -> None:
        """Note which originals of a source arrive from now on, until `conclude`.

        `accept` makes none of their reconstructions.
        """

    @abstractmethod
    def conclude(self, source: str) -> None:
        """End an announcement."""

    async def steps(
        self, source: str, video: str, people: Collection[str]
    ) -> Mapping[str, Sequence[ReachedStep]]:
        """Return the steps that people, by address, are known to have reached in a video."""
        await self._audience.count_all()
        numbers = {self._connections.digests.number(person): person for person in people}
        known: defaultdict[str, list[ReachedStep]] = defaultdict(list)
        ordered = sorted(numbers)
        for start in range(0, len(ordered), PEOPLE_MAX):
            step = orjson.dumps(ordered[start : start + PEOPLE_MAX]).decode()
            values = {"video_id": video[:ID_CHARS], "source": source, "people": step}
            for number, *reached in await rows(self._searcher, _STEPS, values):
                known[numbers[number]].append(ReachedStep.of(*reached))
        return known

    @abstractmethod
    async def erased(self, people: Collection[str]) -> frozenset[str]:
        """Return the addresses among these whose person was erased once."""

    async def known_since_ms(self, source: str) -> int | None:
        """Return the time of the oldest view or lead of a source; None if there is none."""
        found = await row(self._searcher, _SINCE, {"source": source})
        return None if found is None else int(found[0])

    @abstractmethod
    async def library(self, source: str) -> Sequence[KnownVideo]:
        """Return the videos that events of a source named."""

    async def forgotten_ms(self) -> int:
        """Return the time before which deletions of videos may have been seen and forgotten."""
        found = await row(self._reader, _FORGOTTEN, {})
        return 0 if found is None else int(found[0])

    @abstractmethod
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

    async def place(self, source: str) -> ReadPosition | None:
        """Return where the last run of a source says that the next may begin to read."""
        found = await row(self._reader, _PLACE, {"source": source})
        return None if found is None else ReadPosition(*found)

    @abstractmethod
    async def begin(
        self, source: str, *, since_ms: int, until_ms: int, dry_run: bool, now_ms: int
    ) -> RunRecord:
        """Store the beginning of a run.

        Raises NotReconciled if another relay has one of this source under way.
        """

    async def end(
        self,
        run: RunRecord,
        state: RunState,
        *,
        report: Mapping[str, Any] | None,
        place: ReadPosition | None,
        now_ms: int,
    ) -> RunRecord:
        """Store the end of a run with its report, and the place for the next one."""
        # PostgreSQL's JSON has no NUL, which a title may hold.
        text = None if report is None else orjson.dumps(report).decode()
        text = None if text is None else text.replace(r"\u0000", r"\ufffd")

        def end(db: Database) -> None:
            values = {"id": run.id, "state": state, "now": now_ms, "report": text}
            db.execute(_END, values)
            if place is not None:
                position = {"source": run.source, "place": place.after, "at": place.at_ms}
                db.execute(_KEEP_PLACE, position)

        await self._background.transact(end)
        written = None if text is None else orjson.loads(text)
        return replace(run, state=state, ended_ms=now_ms, report=written)

    @abstractmethod
    async def runs(self, *, before: int | None, limit: int) -> Sequence[RunRecord]:
        """Return the newest runs, those before a number if one is given; they name nobody."""

    @abstractmethod
    async def run(self, number: int) -> RunRecord | None:
        """Return one run."""
