"""Reconciliation in PostgreSQL: known people and videos of a source, and the runs."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from relay.core.event import Event, Outcome
from relay.core.routing import Verdict
from relay.store.audience.counting import ID_CHARS
from relay.store.postgres import reconstruct
from relay.store.postgres.accept import Acceptance, Arrival
from relay.store.postgres.audience import PostgresAudience
from relay.store.postgres.driver import Database
from relay.store.postgres.reconstruct import Superseded
from relay.store.postgres.runs import Runs
from relay.store.postgres.shared import PostgresRepository, Shared
from relay.store.postgres.text import storable
from relay.store.reconstructions import (
    KnownVideo,
    Place,
    ReconstructionOutcome,
    Run,
    RunState,
    Step,
)

_STEPS = """
SELECT w.person, w.step, w.at, e.body FROM (
    SELECT person, step, min(at) AS at, CASE WHEN step = 'lead' THEN event ELSE 0 END AS lead
    FROM relay.audience
    WHERE video = (SELECT number FROM relay.videos WHERE id = %s) AND source = %s
        AND person = ANY(%b::bigint[])
    GROUP BY 1, 2, 4
) AS w LEFT JOIN relay.events e ON e.seq = w.lead
"""
_ERASED = "SELECT person FROM relay.erasures WHERE person = ANY(%b::bytea[])"
_SINCE = "SELECT at FROM relay.audience WHERE source = %s ORDER BY at LIMIT 1"
_CHANGES = "SELECT video, change, at FROM relay.library WHERE source = %s"
_SEEN = """
SELECT video, max(at) FROM relay.audience WHERE source = %s AND video IS NOT NULL GROUP BY video
"""
_VIDEOS = "SELECT number, id, title FROM relay.videos WHERE number = ANY(%b::bigint[])"
_FORGOTTEN = "SELECT value FROM relay.state WHERE name = 'library'"


class _Watch(msgspec.Struct):
    """Originals that any member has accepted since an announcement.

    By the ids of their reconstructions.
    """

    seen_to: int
    arrived: set[str] = msgspec.field(default_factory=set)


class PostgresReconstructions(PostgresRepository):
    """Fulfils `relay.store.reconstructions.Reconstructions`."""

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
        self._runs = Runs(shared)
        self._outstanding = shared.outstanding
        self._watched: dict[str, _Watch] = {}

    async def announce(self, source: str) -> None:
        self._watched[source] = _Watch(await self._shared.events.last())

    def conclude(self, source: str) -> None:
        self._watched.pop(source, None)

    async def steps(
        self, source: str, video: str, people: Collection[str]
    ) -> Mapping[str, Sequence[Step]]:
        await self._audience.count_all()
        numbers = {self._shared.digests.number(person): person for person in people}
        values = (storable(video[:ID_CHARS]), source, list(numbers))
        rows = await self._searcher.read(lambda db: db.execute(_STEPS, values).fetchall())
        known: defaultdict[str, list[Step]] = defaultdict(list)
        for number, *step in rows:
            known[numbers[number]].append(Step.of(*step))
        return known

    async def erased(self, people: Collection[str]) -> frozenset[str]:
        return await self._searcher.read(lambda db: self._erased(db, people))

    def _erased(self, db: Database, people: Collection[str]) -> frozenset[str]:
        digests = [self._shared.digests.digest(person) for person in people]
        erased = {bytes(digest) for (digest,) in db.execute(_ERASED, (digests,))}
        return frozenset(
            person for person, digest in zip(people, digests, strict=True) if digest in erased
        )

    async def known_since_ms(self, source: str) -> int | None:
        row = await self._searcher.read(lambda db: db.execute(_SINCE, (source,)).fetchone())
        return None if row is None else int(row[0])

    async def library(self, source: str) -> Sequence[KnownVideo]:
        await self._audience.count_all()
        return await self._searcher.read(partial(_library, source=source))

    async def forgotten_ms(self) -> int:
        row = await self._reader.read(lambda db: db.execute(_FORGOTTEN).fetchone())
        return 0 if row is None else int(row[0])

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

    async def place(self, source: str) -> Place | None:
        return await self._runs.place(source)

    async def begin(
        self, source: str, *, since_ms: int, until_ms: int, dry_run: bool, now_ms: int
    ) -> Run:
        return await self._runs.begin(
            source, since_ms=since_ms, until_ms=until_ms, dry_run=dry_run, now_ms=now_ms
        )

    async def end(
        self,
        run: Run,
        state: RunState,
        *,
        report: Mapping[str, Any] | None,
        place: Place | None,
        now_ms: int,
    ) -> Run:
        return await self._runs.end(run, state, report=report, place=place, now_ms=now_ms)

    async def runs(self, *, before: int | None, limit: int) -> Sequence[Run]:
        return await self._runs.newest(before=before, limit=limit)

    async def run(self, number: int) -> Run | None:
        return await self._runs.one(number)


def _library(db: Database, source: str) -> list[KnownVideo]:
    seen: dict[int, int] = dict(db.execute(_SEEN, (source,)).fetchall())
    changes: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for video, change, at_ms in db.execute(_CHANGES, (source,)):
        changes[video][change] = at_ms
        seen[video] = max(seen.get(video, at_ms), at_ms)
    rows = db.execute(_VIDEOS, (list(seen),))
    return [KnownVideo(id_, title, changes[video], seen[video]) for video, id_, title in rows]
