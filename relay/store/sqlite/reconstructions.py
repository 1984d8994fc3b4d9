"""Reconciliation in SQLite, which reads a library at once, and has no runs of other relays."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import orjson

from relay.core.errors import StoreError
from relay.core.event import Event, Outcome
from relay.core.routing import Verdict
from relay.store.erasures import is_erased
from relay.store.reconstructions import (
    NAMED,
    KnownVideo,
    ReconstructionOutcome,
    Reconstructions,
    RunRecord,
)
from relay.store.sqlite import reconstruct
from relay.store.sqlite.accept import Acceptance, Arrival
from relay.store.sqlite.audience import SqliteAudience
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.reconstruct import Superseded
from relay.store.sqlite.shared import Shared, SqliteRepository

# One scan of the audience takes a quarter of the time of looking up each video's rows.
_VIDEOS = """
WITH viewed AS (
    SELECT video, max(at) AS at FROM audience NOT INDEXED
    WHERE source = ?1 AND video IS NOT NULL GROUP BY 1
), changed AS (
    SELECT video, max(at) AS at, json_group_object(change, at) AS changes FROM library
    WHERE source = ?1 GROUP BY 1
)
SELECT v.id, v.title, max(coalesce(c.at, -1), coalesce(w.at, -1)) AS seen,
    coalesce(c.changes, '{}')
FROM videos v
LEFT JOIN changed c ON c.video = v.number
LEFT JOIN viewed w ON w.video = v.number
WHERE seen >= 0
"""
_COLUMNS = "id, source, since, until, dry, begun_at, ended_at, state"
_BEGIN = """
INSERT INTO reconciliations (source, since, until, dry, begun_at, state)
VALUES (?, ?, ?, ?, ?, 'running')
"""
_RUN = f"SELECT {_COLUMNS}, report FROM reconciliations WHERE id = ?"
_RUNS = f"""
SELECT {_COLUMNS}, json_remove(report, '$.{NAMED}') FROM reconciliations
WHERE ?1 IS NULL OR id < ?1 ORDER BY id DESC LIMIT ?2
"""


class SqliteReconstructions(SqliteRepository, Reconstructions):
    """Knows in memory what it has reconstructed."""

    def __init__(self, shared: Shared, acceptance: Acceptance, audience: SqliteAudience) -> None:
        super().__init__(shared)
        self._acceptance = acceptance
        self._audience = audience
        self._outstanding = shared.outstanding

    async def announce(self, source: str) -> None:
        self._outstanding.announce(source)

    def conclude(self, source: str) -> None:
        self._outstanding.conclude(source)

    async def erased(self, people: Collection[str]) -> frozenset[str]:
        digest = self._shared.digests.digest
        return await self._searcher.read(
            lambda db: frozenset(who for who in people if is_erased(db, digest(who)))
        )

    async def library(self, source: str) -> Sequence[KnownVideo]:
        await self._audience.count_all()
        rows = await self._searcher.read(lambda db: db.execute(_VIDEOS, (source,)).fetchall())
        return [
            KnownVideo(id_, title, orjson.loads(changes), seen)
            for id_, title, seen, changes in rows
        ]

    async def accept(
        self,
        event: Event,
        verdicts: Sequence[Verdict],
        *,
        person: str | None,
        stored: Callable[[ReconstructionOutcome], None],
    ) -> ReconstructionOutcome:
        self._room.require()
        if self._outstanding.has_arrived(event.source, event.id):
            return "arrived"
        digest = None if person is None else self._shared.digests.digest(person)
        is_known = self._outstanding.is_open(event.source, event.id)

        def write(db: sqlite3.Connection) -> tuple[ReconstructionOutcome, int]:
            return reconstruct.add(db, event, verdicts, acceptance=self._acceptance, person=digest)

        def done(result: tuple[ReconstructionOutcome, int]) -> None:
            outcome, seq = result
            if outcome == "accepted":
                self._outstanding.written(event.source, event.id, seq)
                self._shared.count_new(verdicts)
            elif not is_known:
                self._outstanding.remove(event.source, event.id)
            stored(outcome)

        if not is_known:
            # An original that comes during the write supersedes it too.
            self._outstanding.add(event.source, event.id)
        try:
            return (await self._writer.transact(write, done))[0]
        except StoreError:
            if not is_known:
                self._outstanding.remove(event.source, event.id)
            raise

    async def supersede(
        self,
        arrival: Arrival,
        known: tuple[str, int | None],
        stored: Callable[[Outcome, Sequence[Verdict]], None],
    ) -> Outcome:
        """Accept the original of a reconstruction, which is withdrawn where it was not sent.

        `stored` is called with the outcome and the deliveries that were made, once it is on disk.
        """
        shared, source = self._shared, arrival[0].source
        id_, seq = known
        claimed: set[int] = set()

        def mark(seq: int) -> None:
            claimed.add(seq)
            shared.superseded[seq] = ()

        def claim(seq: int) -> Collection[str]:
            # Before the look at the leases: a lease under way must not take it either.
            mark(seq)
            keepers = [sink for sink, leased in list(shared.leased.items()) if seq in leased]
            shared.superseded[seq] = keepers
            return keepers

        def unmark() -> None:
            for each in claimed:
                shared.superseded.pop(each, None)

        def done(result: Superseded) -> None:
            shared.count(result.moved)
            if result.outcome == "accepted":
                self._outstanding.remove(source, id_)
            else:
                unmark()
            stored(result.outcome, result.verdicts)

        def write(db: sqlite3.Connection) -> Superseded:
            accept = self._acceptance
            return reconstruct.supersede(db, arrival, id_, acceptance=accept, claim=claim)

        if seq is not None:
            mark(seq)
        try:
            outcome = (await self._writer.transact(write, done)).outcome
        except StoreError:
            unmark()
            raise
        # A lease under way may have read the deliveries before they were withdrawn.
        with suppress(StoreError):
            await shared.leaser.read(lambda _: None)
            unmark()
        return outcome

    async def begin(
        self, source: str, *, since_ms: int, until_ms: int, dry_run: bool, now_ms: int
    ) -> RunRecord:
        values = (source, since_ms, until_ms, dry_run, now_ms)

        def begin(db: sqlite3.Connection) -> RunRecord:
            return RunRecord.of(
                db.execute(_RUN, (db.execute(_BEGIN, values).lastrowid,)).fetchone()
            )

        return await self._writer.transact(begin)

    async def runs(self, *, before: int | None, limit: int) -> Sequence[RunRecord]:
        rows = await self._reader.read(lambda db: db.execute(_RUNS, (before, limit)).fetchall())
        return [RunRecord.of(row) for row in rows]

    async def run(self, number: int) -> RunRecord | None:
        row = await self._reader.read(lambda db: db.execute(_RUN, (number,)).fetchone())
        return None if row is None else RunRecord.of(row)
