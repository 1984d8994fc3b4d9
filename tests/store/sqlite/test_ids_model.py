"""Random lives of a store, with crashes and retention, against a plain dict of its ids."""

import asyncio
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from relay.core.errors import StoreUnavailable
from relay.core.event import Event
from relay.store.sqlite import id_periods
from relay.store.sqlite.integrity import inspect
from relay.store.sqlite.store import SqliteStore
from tests.conftest import ManualClock
from tests.store.conformance import event
from tests.store.places import SqlitePlace
from tests.store.sqlite.test_known_ids import (
    DAY_MS,
    KEPT_DAYS,
    end_of,
    filters_made,
    go_to,
    opened,
)

LIVES = 25
OPERATIONS = 12
IDS = 400
REFUSED = "e1"

_REFUSE = f"""
CREATE TEMP TRIGGER refuse AFTER INSERT ON main.events WHEN NEW.id GLOB '{REFUSED}*'
BEGIN SELECT raise(ABORT, 'as if the disk failed'); END
"""


@dataclass
class Model:
    """The ids that a store has to know, with the seed of their bodies and their receipts."""

    random: Random
    clock: ManualClock
    known: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)

    async def accept(self, store: SqliteStore, *, refused: str | None = None) -> None:
        seeds = [self.random.choice((0, 0, 0, 1)) for _ in range(self.random.randint(1, 16))]
        events = [self._event(seed) for seed in seeds]
        accepting = (store.accept(each, [], lambda _: None) for each in events)
        outcomes = await asyncio.gather(*accepting, return_exceptions=True)
        for each, seed, outcome in zip(events, seeds, outcomes, strict=True):
            expected = self._outcome(each, seed, refused)
            self.seen[expected] += 1
            if expected == "refused":
                assert isinstance(outcome, StoreUnavailable)
            else:
                assert outcome == expected, each.id

    def _event(self, seed: int) -> Event:
        source = self.random.choice(("main", "other"))
        made = event(f"e{self.random.randrange(IDS)}", source=source, seed=seed)
        return replace(made, received_ms=self.clock.ms)

    def _outcome(self, each: Event, seed: int, refused: str | None) -> str:
        key = each.source, each.id
        if key in self.known:
            return "duplicate" if self.known[key][0] == seed else "conflict"
        if refused is not None and each.id.startswith(refused):
            return "refused"
        self.known[key] = seed, self.clock.ms
        return "accepted"

    async def fail(self, store: SqliteStore) -> None:
        await store._writer.run_exclusive(lambda db: db.executescript(_REFUSE))
        await self.accept(store, refused=REFUSED)
        await store._writer.run_exclusive(lambda db: db.executescript("DROP TRIGGER refuse"))

    async def expire(self, store: SqliteStore) -> None:
        self.clock.ms += self.random.randrange(40) * DAY_MS
        while await store.expire(now_ms=self.clock.ms):
            pass
        oldest_ms = self.clock.ms - KEPT_DAYS * DAY_MS
        self.known = {key: value for key, value in self.known.items() if value[1] >= oldest_ms}

    async def make_filters(self, store: SqliteStore) -> None:
        # A period is full for good with an event in the next one.
        fresh = replace(event(f"fresh{self.random.random()}"), received_ms=self.clock.ms)
        assert await store.accept(fresh, [], lambda _: None) == "accepted"
        self.known[fresh.source, fresh.id] = 0, self.clock.ms
        await filters_made(store)

    async def live(self, store: SqliteStore) -> None:
        operations = (self.accept, self.fail, self.make_filters, self.expire)
        for each in self.random.choices(operations, (8, 2, 1, 1), k=OPERATIONS):
            await each(store)


async def crashed(store: SqliteStore, place: SqlitePlace, folder: Path) -> SqlitePlace:
    """Return the files as a kill would leave them now."""
    folder.mkdir()
    files = [str(place.path.with_name(name)) for name in ("relay.db", "relay.db-wal")]

    def copy(_: object) -> None:
        # Another process: closing the files in this one would drop SQLite's locks.
        subprocess.run(["cp", *files, str(folder)], check=True)

    await store._writer.run_exclusive(copy)
    return SqlitePlace(folder)


@pytest.mark.servers
@pytest.mark.parametrize("seed", range(3))
async def test_every_id_is_accepted_once_as_long_as_it_is_kept(
    tmp_path: Path, clock: ManualClock, seed: int
) -> None:
    random = Random(seed)
    model = Model(random, clock)
    place, next_number = SqlitePlace(tmp_path), 1
    for life in range(LIVES):
        is_killed = random.random() < 0.4
        async with opened(place, clock) as store:
            await model.live(store)
            if is_killed:
                successor = await crashed(store, place, tmp_path / str(life))
        place = successor if is_killed else place
        if random.random() < 0.7:
            (newest,) = _column(place, "SELECT coalesce(max(seq), 0) FROM relay.events")
            next_number = end_of(id_periods.of(newest)) - random.randrange(60)
            go_to(place, max(newest + 1, next_number))
    assert len(_column(place, "SELECT seq FROM relay.events")) == len(model.known)
    assert (await inspect(place.path)).faults == ()
    assert min(model.seen.values()) > 20
    assert len(model.seen) == 4


def _column(place: SqlitePlace, text: str) -> Sequence[int]:
    return [value for (value,) in place.rows(text)]
