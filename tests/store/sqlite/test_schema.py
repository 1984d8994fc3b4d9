"""Migrations run once, in order, whole or not at all."""

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest

from relay.core.errors import StoreBroken, StoreTooNew
from relay.store import Tier
from relay.store.migrations import Migration
from relay.store.sqlite import queries, schema
from tests.conftest import NOW_MS


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        yield connection


def applied(db: sqlite3.Connection) -> list[tuple[object, ...]]:
    return db.execute("SELECT * FROM migrations ORDER BY number").fetchall()


def shape(db: sqlite3.Connection) -> list[tuple[object, ...]]:
    return db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()


def with_steps(monkeypatch: pytest.MonkeyPatch, *more: Migration) -> None:
    known = schema.steps()
    monkeypatch.setattr(schema, "steps", lambda: (*known, *more))


def test_the_files_are_numbered_without_a_gap() -> None:
    assert [step.number for step in schema.steps()] == list(range(1, len(schema.steps()) + 1))


def test_each_step_is_applied_once_and_recorded_with_its_digest(db: sqlite3.Connection) -> None:
    newest = schema.migrate(db, now_ms=NOW_MS)
    folder = files("relay.store.sqlite") / "migrations"
    expected = [
        (
            step.number,
            step.name,
            hashlib.sha256((folder / step.name).read_bytes()).hexdigest(),
            NOW_MS,
        )
        for step in schema.steps()
    ]
    assert applied(db) == expected
    assert schema.migrate(db, now_ms=NOW_MS + 1) == newest
    assert applied(db) == expected


def test_a_later_migration_extends_the_schema(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = schema.migrate(db, now_ms=NOW_MS)
    db.execute("INSERT INTO state VALUES ('kept', 1)")
    with_steps(
        monkeypatch, Migration(first + 1, "more.sql", "CREATE TABLE more (x INTEGER) STRICT;")
    )
    assert schema.migrate(db, now_ms=NOW_MS) == first + 1
    assert db.execute("SELECT value FROM state").fetchall() == [(1,)]
    assert [row[0] for row in applied(db)][-1] == first + 1


def test_a_failed_migration_leaves_the_old_schema(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = schema.migrate(db, now_ms=NOW_MS)
    before = shape(db), applied(db)
    bad = "CREATE TABLE half (x INTEGER) STRICT; DROP TABLE state; INSERT INTO nowhere VALUES (1);"
    with_steps(monkeypatch, Migration(first + 1, "bad.sql", bad))
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        schema.migrate(db, now_ms=NOW_MS)
    assert (shape(db), applied(db)) == before
    assert not db.in_transaction


def test_a_newer_schema_is_refused_and_stays_as_it_is(db: sqlite3.Connection) -> None:
    newest = schema.migrate(db, now_ms=NOW_MS)
    db.execute("INSERT INTO migrations VALUES (?, 'later.sql', 'x', 1)", (newest + 7,))
    before = shape(db), applied(db)
    with pytest.raises(StoreTooNew, match=f"number {newest + 7}, .* up to {newest}"):
        schema.migrate(db, now_ms=NOW_MS)
    assert (shape(db), applied(db)) == before


def test_another_programs_database_is_refused(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE customers (x)")
    with pytest.raises(StoreBroken, match="another program"):
        schema.migrate(db, now_ms=NOW_MS)
    assert [row[1] for row in shape(db)] == ["customers"]


@pytest.mark.parametrize(
    ("tier", "index"),
    [
        ("live", "deliveries_due"),
        ("replay", "deliveries_replayed"),
        ("tried", "deliveries_tried"),
    ],
)
def test_the_query_for_due_deliveries_uses_an_index(
    db: sqlite3.Connection, tier: Tier, index: str
) -> None:
    schema.migrate(db, now_ms=NOW_MS)
    values = {"sink": "s", "now": 1, "limit": 9, "cancelled": "[]"}
    steps = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {queries.DUE[tier]}", values)]
    assert f"INDEX {index} (sink=? AND due_at<?)" in steps[0]
    # The index holds them in their order.
    assert "USE TEMP B-TREE FOR ORDER BY" not in steps


@pytest.mark.parametrize("question", [queries.TALLIES[0], queries.TALLIES[-1]])
def test_a_start_counts_backlogs_without_reading_the_deliveries(
    db: sqlite3.Connection, question: str
) -> None:
    schema.migrate(db, now_ms=NOW_MS)
    (step,) = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {question}")]
    # No step "USE TEMP B-TREE FOR GROUP BY" either, which takes memory for every delivery.
    assert "COVERING INDEX" in step


def test_a_store_of_the_first_schema_keeps_its_deliveries(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = schema.steps()
    monkeypatch.setattr(schema, "steps", lambda: every[:1])
    schema.migrate(db, now_ms=NOW_MS)
    db.execute(
        "INSERT INTO events VALUES (7, 'main', 'a', 'video.ready', NULL, 1, x'00', x'', x'')"
    )
    db.execute("INSERT INTO deliveries VALUES (7, 'crm', 'dead', 3, 40, 20, 50, 'refused')")
    monkeypatch.undo()
    schema.migrate(db, now_ms=NOW_MS)
    kept = db.execute("SELECT * FROM deliveries").fetchall()
    assert kept == [(7, "crm", "dead", 3, 40, 20, 50, "refused", None, None, None, 0, None)]


def test_the_package_holds_its_migrations() -> None:
    folder = Path(str(files("relay.store.sqlite") / "migrations"))
    assert min(file.name for file in folder.glob("*.sql")).startswith("0001_")
