"""Reconciliation in PostgreSQL, where other relays accept originals and begin runs meanwhile."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from relay.core.errors import NotReconciled
from relay.core.event import Event, Outcome
from relay.core.routing import Verdict
from relay.store.postgres import reconstruct
from relay.store.postgres.accept import Acceptance, Arrival
from relay.store.postgres.audience import PostgresAudience
from relay.store.postgres.driver import Database
from relay.store.postgres.reconstruct import Superseded
from relay.store.postgres.shared import PostgresRepository, Shared
from relay.store.reconstructions import (
    NAMED,
    KnownVideo,
    ReconstructionOutcome,
    Reconstructions,
    RunRecord,
)

ALIVE_S = 30
"""Age of a member's last heartbeat from which on its runs count as cut off."""

_ERASED = "SELECT person FROM relay.erasures WHERE person = ANY(%b::bytea[])"
_CHANGES = "SELECT video, change, at FROM relay.library WHERE source = %s"
_SEEN = """
SELECT video, max(at) FROM relay.audience WHERE source = %s AND video IS NOT NULL GROUP BY video
"""
_VIDEOS = "SELECT number, id, title FROM relay.videos WHERE number = ANY(%b::bigint[])"
_BEGIN = """
INSERT INTO relay.reconciliations (id, source, since, until, dry, begun_at, state, member)
OVERRIDING SYSTEM VALUE VALUES (
    %(id)s, %(source)s, %(since)s, %(until)s, %(dry)s, %(now)s, 'running', %(member)s
) ON CONFLICT DO NOTHING
"""
_IS_CUT_OFF = f"""
state = 'running' AND member <> %(member)s AND NOT EXISTS (
    SELECT 1 FROM relay.members AS m
    WHERE m.id = r.member AND m.beat_at > clock_timestamp() - interval '{ALIVE_S} s'
)
"""
_COLUMNS = f"""
id, source, since, until, dry, begun_at, ended_at,
CASE WHEN {_IS_CUT_OFF} THEN 'failed' ELSE state END
"""
_CUT_OFF = f"""
UPDATE relay.reconciliations AS r SET state = 'failed'
WHERE source = %(source)s AND (({_IS_CUT_OFF}) OR (state = 'running' AND member = %(member)s))
"""
"""A member's own one is over as well: its end could not be written."""
_UNDER_WAY = """
SELECT id FROM relay.reconciliations WHERE source = %(source)s AND state = 'running'
"""
_RUN = f"SELECT {_COLUMNS}, report FROM relay.reconciliations AS r WHERE id = %(id)s"
_RUNS = f"""
SELECT {_COLUMNS}, (report::jsonb - '{NAMED}')::text FROM relay.reconciliations AS r
WHERE %(before)s::bigint IS NULL OR id < %(before)s ORDER BY id DESC LIMIT %(limit)s
"""


class _Watch(msgspec.Struct):
    """Originals that any member has accepted since an announcement.

    By the ids of their reconstructions.
    """

    seen_to: int
    arrived: set[str] = msgspec.field(default_factory=set)


class PostgresReconstructions(PostgresRepository, Reconstructions):
    """Watches what other relays accept meanwhile."""

    def __init__(
        self,
        shared: Shared,
        acceptance: Acceptance,
        audience: PostgresAudience,
        *,
        note_new: Callable[[Collection[str]], None],
        on_reconstructions: Callable[[], None],
    ) -> None:
        """`note_new` is called with the sinks of new deliveries."""
        super().__init__(shared)
        self._acceptance = acceptance
        self._audience = audience
        self._note_new = note_new
        self._on_reconstructions = on_reconstructions
        self._outstanding = shared.outstanding
        self._watched: dict[str, _Watch] = {}

    async def announce(self, source: str) -> None:
        self._watched[source] = _Watch(await self._shared.events.last())

    def conclude(self, source: str) -> None:
        self._watched.pop(source, None)

    async def erased(self, people: Collection[str]) -> frozenset[str]:
        return await self._searcher.read(lambda db: self._erased(db, people))

    def _erased(self, db: Database, people: Collection[str]) -> frozenset[str]:
        digests = [self._shared.digests.digest(person) for person in people]
        erased = {bytes(digest) for (digest,) in db.execute(_ERASED, (digests,))}
        return frozenset(
            person for person, digest in zip(people, digests, strict=True) if digest in erased
        )

    async def library(self, source: str) -> Sequence[KnownVideo]:
        await self._audience.count_all()
        return await self._searcher.read(partial(_library, source=source))

    async def accept(
        self,
        event: Event,
        verdicts: Sequence[Verdict],
        *,
        person: str | None,
        stored: Callable[[ReconstructionOutcome], None],
    ) -> ReconstructionOutcome:
        digest = None if person is None else self._shared.digests.digest(person)
        watch = self._watched.get(event.source)

        def done(outcome: ReconstructionOutcome | None) -> None:
            if outcome == "accepted":
                self._outstanding.add(event.source, event.id)
                self._on_reconstructions()
                self._note_new([verdict.sink for verdict in verdicts])
            if outcome is not None:
                stored(outcome)

        while True:
            if watch is not None:
                # Right before, so that few originals are left to be looked at under the lock.
                await self._read_arrivals(event.source, watch)
                if event.id in watch.arrived:
                    stored("arrived")
                    return "arrived"
            add = partial(
                reconstruct.add,
                event=event,
                verdicts=verdicts,
                acceptance=self._acceptance,
                person=digest,
                after=None if watch is None else watch.seen_to,
            )
            # Not in a transaction, which would hold the lock over several round trips.
            outcome = await self._shared.background.run(add, done)
            if outcome is not None:
                return outcome

    async def _read_arrivals(self, source: str, watch: _Watch) -> None:
        """Note the originals that have arrived since the last look."""
        upto = await self._shared.events.last()
        find = partial(reconstruct.arrived, source=source, after=watch.seen_to, upto=upto)
        watch.arrived |= await self._reader.read(lambda db: set(find(db)))
        watch.seen_to = upto

    async def supersede(
        self,
        arrival: Arrival,
        known: str,
        stored: Callable[[Outcome, Sequence[Verdict]], None],
    ) -> Outcome:
        """Accept the original of a reconstruction, which is withdrawn where it was not sent.

        `stored` is called with the outcome and the deliveries that were made, once it is on disk.
        """

        def write(db: Database) -> Superseded:
            return reconstruct.supersede(db, arrival, known, acceptance=self._acceptance)

        def done(result: Superseded) -> None:
            self._outstanding.remove(arrival[0].source, known)
            stored(result.outcome, result.verdicts)

        return (await self._shared.background.transact(write, done)).outcome

    async def begin(
        self, source: str, *, since_ms: int, until_ms: int, dry_run: bool, now_ms: int
    ) -> RunRecord:
        number = await self._shared.draw("reconciliations")
        values = {
            "id": number,
            "source": source,
            "since": since_ms,
            "until": until_ms,
            "dry": int(dry_run),
            "now": now_ms,
            "member": self._shared.member,
        }

        def begin(db: Database) -> tuple[RunRecord | None, int | None]:
            db.execute(_CUT_OFF, values)
            db.execute(_BEGIN, values)
            begun = db.execute(_RUN, values).fetchone()
            other = db.execute(_UNDER_WAY, values).fetchone()
            return RunRecord.of(begun) if begun else None, int(other[0]) if other else None

        run, other = await self._background.transact(begin)
        if run is None:
            raise NotReconciled(f"run {other} of source {source} is under way on another relay")
        return run

    async def runs(self, *, before: int | None, limit: int) -> Sequence[RunRecord]:
        values = {"before": before, "limit": limit, "member": self._shared.member}
        rows = await self._reader.read(lambda db: db.execute(_RUNS, values).fetchall())
        return [RunRecord.of(row) for row in rows]

    async def run(self, number: int) -> RunRecord | None:
        values = {"id": number, "member": self._shared.member}
        row = await self._reader.read(lambda db: db.execute(_RUN, values).fetchone())
        return None if row is None else RunRecord.of(row)


def _library(db: Database, source: str) -> list[KnownVideo]:
    seen: dict[int, int] = dict(db.execute(_SEEN, (source,)).fetchall())
    changes: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for video, change, at_ms in db.execute(_CHANGES, (source,)):
        changes[video][change] = at_ms
        seen[video] = max(seen.get(video, at_ms), at_ms)
    rows = db.execute(_VIDEOS, (list(seen),))
    return [KnownVideo(id_, title, changes[video], seen[video]) for video, id_, title in rows]
