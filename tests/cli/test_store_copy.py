"""`relay store copy`: a stopped relay's store on its way to a database."""

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from relay.cli import main
from relay.core import sample_events
from relay.core.event import LEAD_CAPTURED
from relay.core.routing import Verdict
from relay.store.copying import transfer
from relay.store.sqlite import disk
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from tests.conftest import ManualClock
from tests.store.places import PostgresPlace

pytestmark = pytest.mark.long

EVENTS = 20
MANY = 60_000
"""More than are copied before a kill that comes after the first ones."""
SOURCE = '[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = ["a-secret-of-sixteen"]\n'

Copy = Callable[..., Result]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "relay.db"
    asyncio.run(fill(path))
    return path


async def fill(path: Path) -> None:
    store = await open_store(SqliteSettings(path=str(path)), clock=ManualClock())
    for number in range(EVENTS):
        event = sample_events.event(LEAD_CAPTURED, source="main", event_id=f"evt_{number}")
        await store.accept(event, (Verdict("sales", "takes", ""),), lambda _: None)
    await store.close()


@pytest.fixture
def copy(tmp_path: Path, path: Path, postgres_place: PostgresPlace) -> Copy:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(f'[store]\npath = "{path}"\n{SOURCE}', encoding="utf-8")
    new.write_text(
        '[store]\ntype = "postgres"\ndsn = "env:DATABASE_URL"\n'
        f'schema = "{postgres_place.schema}"\n{SOURCE}',
        encoding="utf-8",
    )

    def copy(*arguments: str, config: Path = old, to: Path = new) -> Result:
        command = ["store", "copy", "--config", str(config), "--to", str(to), *arguments]
        return CliRunner().invoke(main, command, env={"DATABASE_URL": postgres_place.server.dsn})

    return copy


def test_each_table_is_listed_with_its_rows(copy: Copy, postgres_place: PostgresPlace) -> None:
    result = copy()
    assert result.exit_code == 0, result.output
    rows = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
    assert ["events", str(EVENTS), "the same"] in rows
    assert ["deliveries", str(EVENTS), "the same"] in rows
    said = result.stderr.splitlines()
    assert f"events: {EVENTS} rows copied" in said
    assert "events: comparing" in said
    assert "Start the relay with the new config" in result.stdout
    assert postgres_place.rows("SELECT count(*) FROM relay.events") == [(EVENTS,)]


def test_the_tables_are_available_as_json(copy: Copy) -> None:
    document = json.loads(copy("--json").stdout)
    assert document["ok"] is True
    assert {"table": "events", "rows": EVENTS, "is_same": True} in document["tables"]


def test_a_copy_that_differs_exits_with_1(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()
    monkeypatch.setattr(transfer, "_digest", lambda _: (next(numbers), b""))
    result = copy()
    assert result.exit_code == 1
    assert "differs" in result.stdout
    assert "drop the schema, and copy again" in result.stdout


async def test_a_killed_copy_goes_on(copy: Copy, path: Path, postgres_place: PostgresPlace) -> None:
    columns = "(seq, source, id, kind, received_at, digest)"
    rows = ((number, "main", f"more_{number}", "x", 0, b"") for number in range(100, MANY))
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany(f"INSERT INTO events {columns} VALUES (?, ?, ?, ?, ?, ?)", rows)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "relay", "store", "copy"),
        *("--config", str(path.with_name("old.toml")), "--to", str(path.with_name("new.toml"))),
        env={**os.environ, "DATABASE_URL": postgres_place.server.dsn},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async for line in process.stderr:
        if line.startswith(b"events: "):
            process.kill()
            break
    assert await process.wait() == -signal.SIGKILL
    ((before,),) = postgres_place.rows("SELECT count(*) FROM relay.events")
    assert 0 < before < MANY - 100 + EVENTS
    result = await asyncio.to_thread(copy)
    assert result.exit_code == 0, result.output
    assert f"events: {MANY - 100 + EVENTS - before} rows copied" in result.stderr


def test_a_running_relay_is_refused(copy: Copy, path: Path) -> None:
    with disk.lock(path):
        result = copy()
    assert result.exit_code == os.EX_TEMPFAIL
    held = f"another relay holds the store {path}; stop that one, or change store.path"
    assert result.output == f"relay: {held}\n"


def test_a_schema_with_rows_is_refused(copy: Copy) -> None:
    assert copy().exit_code == 0
    result = copy()
    assert result.exit_code == os.EX_CONFIG
    assert "is not empty, keys has rows" in result.output


def test_both_configs_need_their_types(copy: Copy, tmp_path: Path) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    result = copy(config=new)
    assert result.exit_code == os.EX_CONFIG
    assert f'{new}: store.type: expected "sqlite" here, found "postgres"' in result.output
    result = copy(to=old)
    assert f'{old}: store.type: expected "postgres" here, found "sqlite"' in result.output
