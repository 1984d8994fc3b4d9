"""A store on SQLite, copied to PostgreSQL: every table, in steps that go on after a kill."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core.config_values import Secret
from relay.core.errors import (
    StoreBroken,
    StoreLocked,
    StoreRefused,
    StoreTooNew,
    StoreUnavailable,
)
from relay.store.copy_result import CopyResult
from relay.store.copying import transfer
from relay.store.copying.tables import (
    COLUMNS_LEFT_OUT,
    LEFT_OUT,
    STATE_LEFT_OUT,
    TABLES,
    CopiedTable,
)
from relay.store.copying.target import TargetSchema
from relay.store.postgres.driver import Database
from relay.store.postgres.schema import COPYING
from relay.store.sqlite import disk
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from tests.conftest import NOW_MS, ManualClock
from tests.store.places import PostgresPlace

ROWS = 7
"""In each table; more than a batch of the tests."""

CHOICES: dict[tuple[str, str], object] = {
    ("deliveries", "status"): "pending",
    ("deliveries", "replayed_from"): "dead",
    ("attempts", "result"): "retry",
    ("replays", "state"): "done",
    ("absences", "cause"): "crashed",
    ("sessions", "role"): "viewer",
    ("known_clients", "role"): "admin",
    ("reconciliations", "state"): "failed",
    ("events", "reconstructed"): 2,
}
"""Values where not every one is allowed."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a stopped relay's store with rows in each table."""
    path = tmp_path / "relay.db"
    asyncio.run(create(path))
    with closing(sqlite3.connect(path)) as db, db:
        for table in TABLES:
            fill(db, table)
        db.execute("DELETE FROM quarantine WHERE number = ?", (ROWS,))
    return path


async def create(path: Path) -> None:
    await (await open_store(SqliteSettings(path=str(path)), clock=ManualClock())).close()


def fill(db: sqlite3.Connection, table: CopiedTable) -> None:
    columns = db.execute(f"PRAGMA table_info({table.name})").fetchall()
    for number in range(1, ROWS + 1):
        row = [value(table.name, column, kind, number) for _, column, kind, *_ in columns]
        db.execute(f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(row))})", row)


def value(table: str, column: str, kind: str, number: int) -> object:
    """Return a value whose order differs between texts, bytes and numbers."""
    if (table, column) in CHOICES:
        return CHOICES[table, column]
    match kind:
        case "TEXT":
            return f"{'zZéa'[number % 4]}{column}{number}\0"
        case "BLOB":
            return bytes((255 - number, 0, number))
    return number


def rows(path: Path, text: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(text).fetchall()


def copy(path: Path, place: PostgresPlace) -> list[CopyResult]:
    return transfer.copy(SqliteSettings(path=str(path)), place.settings(), now_ms=NOW_MS)


def content(place: PostgresPlace) -> dict[str, list[tuple[Any, ...]]]:
    names = [table.name for table in TABLES]
    return {name: place.rows(f"SELECT * FROM relay.{name} ORDER BY 1, 2") for name in names}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "BATCH_ROWS", 3)


def test_every_table_of_both_engines_is_copied_or_left_out_with_a_reason(
    path: Path, postgres_place: PostgresPlace
) -> None:
    copy(path, postgres_place)
    names = "SELECT name FROM sqlite_master WHERE type = 'table'"
    of_sqlite = {name for (name,) in rows(path, names)}
    tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = %s"
    of_postgres = {name for (name,) in postgres_place.rows(tables, postgres_place.schema)}
    copied = {table.name for table in TABLES}
    assert of_sqlite | of_postgres == copied | set(LEFT_OUT)
    assert copied <= of_sqlite & of_postgres
    assert not copied & set(LEFT_OUT)


def test_every_row_and_column_is_copied(path: Path, postgres_place: PostgresPlace) -> None:
    copied = copy(path, postgres_place)
    assert all(each.is_same for each in copied)
    counts = {each.table: each.rows for each in copied}
    engine_state = STATE_LEFT_OUT & {name for (name,) in rows(path, "SELECT name FROM state")}
    for table in TABLES:
        (count,) = rows(path, f"SELECT count(*) FROM {table.name}")[0]
        expected = count - (len(engine_state) if table.name == "state" else 0)
        assert counts[table.name] == expected, table.name
        assert len(content(postgres_place)[table.name]) == expected, table.name
        columns = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s"
        own = postgres_place.rows(
            f"{columns} AND table_name = %s", postgres_place.schema, table.name
        )
        found = {name for _, name, *_ in rows(path, f"PRAGMA table_info({table.name})")}
        row_id = {table.row_id} if table.row_id else set()
        left_out = {column for name, column in COLUMNS_LEFT_OUT if name == table.name}
        assert {name for (name,) in own} == found | row_id | left_out, table.name
    assert postgres_place.rows("SELECT value FROM relay.keys WHERE name = 'persons'") == rows(
        path, "SELECT value FROM keys WHERE name = 'persons'"
    )
    assert postgres_place.rows("SELECT body FROM relay.events WHERE seq = 3") == [(b"\xfc\0\3",)]
    assert postgres_place.rows("SELECT person FROM relay.erasures WHERE id = 1") == [(b"\xfe\0\1",)]


def test_each_sink_that_ever_had_a_delivery_has_its_backlog(
    path: Path, postgres_place: PostgresPlace
) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE deliveries SET status = 'delivered', sink = 'old' WHERE event = 1")
        db.execute("UPDATE deliveries SET sink = 'crm', replay = NULL WHERE event > 1")
    copy(path, postgres_place)
    found = postgres_place.rows("SELECT * FROM relay.backlogs ORDER BY sink")
    assert found == [("crm", ROWS - 1, 0, 2), ("old", 0, 0, None)]


def test_characters_that_postgresql_cannot_store_are_replaced(
    path: Path, postgres_place: PostgresPlace
) -> None:
    copy(path, postgres_place)
    assert postgres_place.rows("SELECT id FROM relay.events WHERE seq = 3") == [("aid3\ufffd",)]


def test_numbers_go_on_where_the_source_left_off(path: Path, postgres_place: PostgresPlace) -> None:
    copy(path, postgres_place)
    place = postgres_place
    insert = "INSERT INTO relay.quarantine (source, received_at, size, signature, headers, body)"
    empty = "VALUES ('main', 0, 0, '', '', '') RETURNING number"
    assert place.rows(f"{insert} {empty}") == [(ROWS + 1,)]
    assert place.rows("INSERT INTO relay.viewers (person) VALUES (-1) RETURNING number") == [
        (ROWS + 1,)
    ]
    event = "INSERT INTO relay.events (source, id, kind, received_at, digest)"
    assert place.rows(f"{event} VALUES ('main', 'new', '', 0, '') RETURNING seq") == [(ROWS + 1,)]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("batches", [0, 1, 5, 20, 40])
def test_a_copy_that_was_cut_off_goes_on(
    path: Path, postgres_place: PostgresPlace, batches: int
) -> None:
    copy(path, postgres_place)
    whole = content(postgres_place)
    postgres_place.drop()

    def wrote(_: str, __: int) -> None:
        nonlocal batches
        if batches == 0:
            raise Killed
        batches -= 1

    settings = postgres_place.settings()
    with pytest.raises(Killed):
        transfer.copy(SqliteSettings(path=str(path)), settings, now_ms=NOW_MS, wrote=wrote)
    written: list[str] = []
    copied = transfer.copy(
        SqliteSettings(path=str(path)), settings, now_ms=NOW_MS, wrote=lambda *_: written.append("")
    )
    assert all(each.is_same for each in copied)
    assert content(postgres_place) == whole
    assert len(written) < sum(-(-len(each) // 3) for each in whole.values())


async def test_no_relay_opens_a_copy_that_is_not_whole(
    path: Path, postgres_place: PostgresPlace
) -> None:
    def wrote(name: str, _: int) -> None:
        if name == "deliveries":
            raise Killed

    with pytest.raises(Killed):
        transfer.copy(
            SqliteSettings(path=str(path)), postgres_place.settings(), now_ms=NOW_MS, wrote=wrote
        )
    with pytest.raises(StoreRefused, match="holds a copy that is not whole"):
        async with postgres_place.open(ManualClock()):
            pass


def test_a_difference_is_found_and_keeps_the_schema_closed(
    path: Path, postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = TargetSchema.write

    def damaging(self: Any, table: CopiedTable, columns: Any, batch: list[Any]) -> None:
        write(self, table, columns, batch[:-1] if table.name == "audience" else batch)

    monkeypatch.setattr(TargetSchema, "write", damaging)
    copied = copy(path, postgres_place)
    assert [each.table for each in copied if not each.is_same] == ["audience"]
    (marked,) = postgres_place.rows("SELECT count(*) FROM relay.state WHERE name = %s", COPYING)
    assert marked == (1,)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("events", "UPDATE events SET body = x'00' WHERE seq = 2"),
        ("attempts", "UPDATE attempts SET answer = 'other' WHERE event = 2"),
        ("totals", "UPDATE totals SET events = events + 1"),
    ],
)
def test_a_row_that_changed_between_two_runs_is_found(
    path: Path, postgres_place: PostgresPlace, table: str, change: str
) -> None:
    def wrote(name: str, _: int) -> None:
        if name == "library":
            raise Killed

    settings = postgres_place.settings()
    with pytest.raises(Killed):
        transfer.copy(SqliteSettings(path=str(path)), settings, now_ms=NOW_MS, wrote=wrote)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(change)
    copied = copy(path, postgres_place)
    assert [each.table for each in copied if not each.is_same] == [table]


def test_a_running_relay_refuses_the_copy(path: Path, postgres_place: PostgresPlace) -> None:
    with disk.lock(path), pytest.raises(StoreLocked):
        copy(path, postgres_place)


def test_a_relay_cannot_start_during_the_copy(path: Path, postgres_place: PostgresPlace) -> None:
    held: list[bool] = []
    transfer.copy(
        SqliteSettings(path=str(path)),
        postgres_place.settings(),
        now_ms=NOW_MS,
        wrote=lambda *_: held.append(not disk.is_free(path)),
    )
    assert held
    assert all(held)


def test_a_schema_with_rows_is_refused(path: Path, postgres_place: PostgresPlace) -> None:
    copy(path, postgres_place)
    with pytest.raises(StoreRefused, match=r"is not empty, keys has rows"):
        copy(path, postgres_place)


def test_the_copy_of_another_store_is_refused(
    path: Path, postgres_place: PostgresPlace, tmp_path: Path
) -> None:
    def killed(_: str, __: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        transfer.copy(
            SqliteSettings(path=str(path)), postgres_place.settings(), now_ms=NOW_MS, wrote=killed
        )
    other = tmp_path / "other.db"
    asyncio.run(create(other))
    with pytest.raises(StoreRefused, match="holds a copy of another store"):
        copy(other, postgres_place)


def test_a_store_of_an_older_relay_has_to_be_migrated_first(
    path: Path, postgres_place: PostgresPlace
) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM migrations WHERE number > 3")
    with pytest.raises(StoreUnavailable, match="start this relay on it once"):
        copy(path, postgres_place)


def test_a_store_of_a_newer_relay_is_refused_for_that(
    path: Path, postgres_place: PostgresPlace
) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO migrations VALUES (9000, '9000_later.sql', '', 0)")
    with pytest.raises(StoreTooNew, match="run the relay that wrote it"):
        copy(path, postgres_place)


def test_a_failure_of_the_progress_is_not_put_down_to_the_store(
    path: Path, postgres_place: PostgresPlace
) -> None:
    def wrote(_: str, __: int) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        transfer.copy(
            SqliteSettings(path=str(path)), postgres_place.settings(), now_ms=NOW_MS, wrote=wrote
        )


def test_a_time_limit_of_the_role_does_not_end_the_copy(
    path: Path, postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_in = Database.copy_in

    def slowly(db: Database, text: str, types: Any, batch: list[Any]) -> None:
        def rows() -> Iterator[Any]:
            yield from batch
            if "relay.audience " in text:
                time.sleep(1.3)

        copy_in(db, text, types, rows())

    monkeypatch.setattr(Database, "copy_in", slowly)
    settings = postgres_place.settings()
    limited = f"{settings.dsn.reveal()} options='-c statement_timeout=1s'"
    copied = transfer.copy(
        SqliteSettings(path=str(path)),
        replace(settings, dsn=Secret(limited)),
        now_ms=NOW_MS,
    )
    assert all(each.is_same for each in copied)


def test_a_missing_file_is_not_created(tmp_path: Path, postgres_place: PostgresPlace) -> None:
    with pytest.raises(StoreBroken, match="there is no store at"):
        copy(tmp_path / "relay.db", postgres_place)
    assert list(tmp_path.iterdir()) == []
