"""A kill between any two statements loses no id, and no migration."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from relay.core.errors import StoreFull
from relay.store.sqlite import disk, id_periods, schema
from relay.store.sqlite.integrity import inspect
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept, event
from tests.store.places import SqlitePlace
from tests.store.sqlite.test_known_ids import end_of, filters_made, go_to, opened

pytestmark = pytest.mark.long

KILLS = 4
EVENTS = 40_000
DEADLINE_S = 60

# Accepts events in batches without end, and writes the ids of each batch once it is on the disk.
_ACCEPTING = """
import asyncio, sys
from pathlib import Path
from relay.core.clock import SystemClock
from relay.store.sqlite import filter_builder, id_indexing
from tests.store.conformance import accept, event
from tests.store.places import SqlitePlace

filter_builder.STEP_PAUSE_S = 0
id_indexing.STEP_ROWS = 5

async def run(folder, name):
    async with SqlitePlace(Path(folder)).open(SystemClock()) as store:
        number = 0
        while True:
            ids = [f"{name}-{number + step}" for step in range(5)]
            number += 5
            assert await accept(store, *map(event, ids), verdicts=[]) == ["accepted"] * 5
            print(" ".join(ids), flush=True)

asyncio.run(run(*sys.argv[1:]))
"""
_MIGRATING = """
import sys
from pathlib import Path
from relay.store.sqlite import schema
import asyncio
from relay.store.sqlite.driver import open_writer

async def run(path):
    connection = await open_writer(Path(path))
    print("begun", flush=True)
    await connection.run(lambda db: schema.migrate(db, now_ms=1))
    print("done", flush=True)
    await connection.close()

asyncio.run(run(*sys.argv[1:]))
"""


@contextmanager
def script(text: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", text, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


async def test_ids_accepted_before_a_kill_are_known_after_it(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    random, known = Random(5), list[str]()
    async with opened(sqlite_place, clock):
        pass
    for kill in range(KILLS):
        # Each life goes through the end of a period, and makes the filter of that.
        go_to(sqlite_place, end_of(kill) - random.randrange(100))
        with script(_ACCEPTING, str(sqlite_place.path.parent), f"life{kill}") as process:
            assert process.stdout is not None
            for _ in range(random.randrange(20, 150)):
                known += process.stdout.readline().split()
            process.send_signal(signal.SIGKILL)
            known += process.stdout.read().split()
        async with opened(sqlite_place, clock) as store:
            again = [event(each) for each in known]
            assert set(await accept(store, *again, verdicts=[])) == {"duplicate"}
            (period,) = sqlite_place.rows(f"SELECT max(seq) >> {id_periods.BITS} FROM events")
            assert period == (kill + 1,)
    async with opened(sqlite_place, clock) as store:
        await filters_made(store)
        assert set(await accept(store, *map(event, known), verdicts=[])) == {"duplicate"}
    assert (await inspect(sqlite_place.path)).faults == ()


@pytest.fixture
def older(sqlite_place: SqlitePlace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with one index of all ids, with a body and a delivery of each event."""
    known = schema.steps()
    with monkeypatch.context() as patch, closing(sqlite3.connect(sqlite_place.path)) as db:
        patch.setattr(schema, "steps", lambda: known[:14])
        db.isolation_level = None
        db.executescript("PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;")
        schema.migrate(db, now_ms=NOW_MS)
        db.execute("BEGIN")
        bodies = ((n, f"e{n}", *_body(n)) for n in range(1, EVENTS + 1))
        db.executemany(
            "INSERT INTO events VALUES (?, 'main', ?, 'video.ready', NULL, 1, ?, x'00', ?, 0)",
            bodies,
        )
        db.execute(
            "INSERT INTO deliveries (event, sink, status, due_at) "
            "SELECT seq, 'crm', 'delivered', 1 FROM events"
        )
        db.execute("UPDATE events SET reconstructed = seq % 3 WHERE seq < 10")
        db.execute("COMMIT")
    return sqlite_place.path


def _body(number: int) -> tuple[bytes, bytes]:
    body = json.dumps({"number": number, "text": "x" * 500}).encode()
    return sha256(body).digest(), body


def _rows(path: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()


async def test_a_killed_migration_leaves_the_old_store_or_the_new_one(
    older: Path, sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    before = [_rows(older, table) for table in ("events", "deliveries")]
    random, is_done = Random(1), False
    kills = 0
    while not is_done:
        with script(_MIGRATING, str(older)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            if kills < KILLS:
                await asyncio.sleep(random.uniform(0, 0.3))
                process.send_signal(signal.SIGKILL)
            is_done = process.stdout.read() == "done\n"
            kills += not is_done
        assert [_rows(older, table) for table in ("events", "deliveries")] == before
    assert kills > 0
    assert sqlite_place.rows("SELECT count(*) FROM relay.ids") == [(id_periods.SIZE - 1,)]
    async with opened(sqlite_place, clock) as store:
        again = [event("e1"), event("new"), event(f"e{EVENTS}")]
        assert await accept(store, *again, verdicts=[]) == ["conflict", "accepted", "conflict"]
    assert (await inspect(older)).faults == ()
    with closing(sqlite3.connect(older)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_migration_without_room_changes_nothing(
    older: Path,
    sqlite_place: SqlitePlace,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = _rows(older, "migrations")
    free = 2 * older.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(disk, "free_bytes", lambda _: free)
        with pytest.raises(StoreFull, match=f"{free} are free: make room"):
            async with opened(sqlite_place, clock):
                pass
    assert _rows(older, "migrations") == before
    async with opened(sqlite_place, clock) as store:
        assert (await store.inspections.inspect()).faults == ()


async def test_an_older_store_can_be_inspected(older: Path) -> None:
    inspection = await inspect(older)
    assert inspection.faults == ()
    assert inspection.content is not None
    assert inspection.content.schema == 14
