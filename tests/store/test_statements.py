"""Statements of both engines: each understands all, and reads no more than it has to."""

import pkgutil
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, cast

import psycopg
import pytest

from relay import store as package
from relay.core.minutes import DAY_MS
from relay.store import Store
from relay.store.audience.days import WEEK_MS
from relay.store.postgres.driver import Database
from relay.store.sql import ALL, Condition, FilteredSql, Sql, all_of, any_of
from tests.conftest import ManualClock
from tests.store.places import Place, PostgresPlace, SqlitePlace

ROWS = 20_000
"""In each table that grows: for a few, PostgreSQL reads all of them."""


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(package.__path__, "relay.store."):
        if found.name.split(".")[2] not in ("copying", "postgres", "sqlite"):
            yield import_module(found.name)


def _named(name: str, value: object) -> Iterator[tuple[str, Sql]]:
    match value:
        case Sql():
            yield name, value
        case FilteredSql():
            yield f"{name}, all", value.by({})
            if value.strictest != value.by({}):
                yield f"{name}, chosen", value.strictest
        case tuple():
            for number, each in enumerate(value):
                yield from _named(f"{name}[{number}]", each)
        case dict():
            for key, each in value.items():
                yield from _named(f"{name}[{key}]", each)


def _statements() -> dict[str, Sql]:
    """Return each statement once, also if several modules import it."""
    found = {
        id(sql): (name, sql)
        for module in reversed([*_modules()])
        for variable, value in vars(module).items()
        for name, sql in _named(f"{module.__name__.removeprefix('relay.store.')}.{variable}", value)
    }
    return dict(found.values())


STATEMENTS = _statements()

FEW = {
    "erasures": "an operator has ordered each",
    "known_clients": "200 at most",
    "added_totals": "some 1,000 at most",
    "paused_sinks": "a row for each sink",
    "rotations": "a row for each source",
    "sessions": "400 at most",
    "totals": "a row for each source, kind and milestone",
}
"""Tables that any statement may read from one end to the other."""

SCANS = {
    "absences._LOSS": "adds up what is in an index of open absences alone",
    "absences._UNRECONCILED": "reads all absences and runs, which are few",
    "audience.reads._GROUPS[source], all": "counts all rows, where days cannot answer",
    "audience.reads._GROUPS[source], chosen": "groups the rows of a time",
    "audience.reads._GROUPS[video], all": "counts all rows, where days cannot answer",
    "audience.reads._GROUPS[video], chosen": "groups the rows of a time",
    "audience.reads._STEPS, all": "counts all rows, where days cannot answer",
    "audience.reads._STEPS, chosen": "groups the rows of a time",
    "audience.writes._ALL_SETS": "reads all days and weeks, for an inspection",
    "audience.writes._CLEAR_DAYS": "removes all days",
    "audience.writes._CLEAR_WEEKS": "removes all weeks",
    "dead_letters._REASONS, all": "groups the dead letters in an index alone, on the searcher",
    "dead_letters._REASONS, chosen": "groups the dead letters of a sink, on the searcher",
    "dead_letters._REASONS_OF_EVENTS, all": "groups all dead letters, on the searcher",
    "dead_letters._REASONS_OF_EVENTS, chosen": "groups the dead letters of a sink, on the searcher",
    "events._ATTEMPTS": "sorts the attempts of one event",
    "events._COUNT, all": "is for the events of a step of a search",
    "events._COUNT, chosen": "is for the events of a step of a search",
    "events._HAS, all": "reads events up to the first of a kind, on the searcher",
    "events._KINDS": "reads all events, on the searcher",
    "events._SINKS": "reads all deliveries, on the searcher",
    "overview._FIRST_DEATH": "on SQLite, reads the dead letters of one sink in an index",
    "overview._LAST_DEATH": "on SQLite, sorts the dead letters of one sink",
    "overview._UNREADABLE": "counts all requests in an index",
    "personal_data_removal._SENT": "groups the attempts of some events",
    "quarantine._ROTATIONS, all": "counts the kept requests of all sources",
    "reconstructions._STEPS": "groups the views of some people in one video",
    "replays._RUNNING": "reads all replays, each of which an operator began",
    "replays._UNDER_WAY": "reads an index of replays' pending deliveries alone",
    "statistics._ACCEPTED": "groups a step of 1,000 rows",
    "statistics._ATTEMPTED": "groups a step of 1,000 rows",
    "statistics._OF_SINK": "groups a step of 1,000 rows",
    "unreadable._CONTENTS, chosen": "sorts the requests of one source",
    "unreadable._NEWEST, chosen": "sorts the requests of one source",
    "unreadable._REASONS, all": "counts all requests, on the searcher",
    "unreadable._REASONS, chosen": "counts all requests, on the searcher",
}
"""Statements that scan a table or sort, and why they may."""

SORTED_MAX = 100
"""Rows that PostgreSQL may expect to sort, of those that an index selects."""

_N = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < %s)"
_FILLED = (
    """relay.events (source, id, kind, received_at, digest, headers, body)
    SELECT 'main', 'e' || n, 'video.watched', n, BYTES, BYTES, BYTES FROM n""",
    """relay.deliveries (event, sink, status, due_at, replay)
    SELECT n, 'sink' || (n % 7), 'dead', n, NULL FROM n""",
    """relay.attempts (event, sink, started_at, duration_ms, result, reason, answer)
    SELECT n, 'sink' || (n % 7), n, 1, 'retry', 'timeout', '' FROM n""",
    f"relay.videos (id, title) SELECT 'v' || n, '{'Title ' * 50}' FROM n",
    "relay.viewers (person) SELECT n FROM n",
    """relay.audience (event, source, video, step, person, at)
    SELECT n, 'source' || (n % 7), n, 'started', n, n FROM n""",
    f"""relay.audience_days
        (day, source, step, events, anonymous, people, half_hours, viewers, videos)
    SELECT CAST(n AS bigint) * {DAY_MS}, 'source' || (n % 7), 'started', 9, 1,
        BYTES, BYTES, BYTES, BYTES FROM n""",
    f"""relay.audience_weeks
        (week, source, step, events, anonymous, people, half_hours, viewers, videos)
    SELECT CAST(n AS bigint) * {WEEK_MS}, 'source' || (n % 7), 'started', 9, 1,
        BYTES, BYTES, BYTES, BYTES FROM n""",
    """relay.unreadable (source, digest, received_at, reason, headers, body)
    SELECT 'main', BYTES, n, 'no JSON', BYTES, BYTES FROM n""",
    """relay.quarantine (source, received_at, size, signature, headers, body)
    SELECT 'source' || (n % 7), n, 9, BYTES, BYTES, BODY FROM n""",
    """relay.rotations (source, begun_at, until, expires_at)
    SELECT 'source' || n, n, n, n FROM n WHERE n < 7""",
    "relay.audit (begun_at, operation, asked) SELECT n, 'op' || (n % 50), '{}' FROM n",
    """relay.sink_states (sink, at, state)
    SELECT 'sink' || (n % 7), n, 'active' FROM n""",
    """relay.absences (cause, from_at, to_at, lost_until, acknowledged_at)
    SELECT 'stopped', n, n + 1, n + 1, CASE WHEN n % 100 <> 0 THEN n END FROM n""",
    """relay.replays (created_at, selection, state, total, until, attempt)
    SELECT n, '{}', CASE WHEN n % 100 = 0 THEN 'running' ELSE 'done' END, 1, n, n FROM n""",
    """relay.reconciliations (source, since, until, dry, begun_at, state, report)
    SELECT 'main', n, n + 1, 0, n, 'done', '{}' FROM n""",
    """relay.sessions (digest, role, token, opened_at, seen_at)
    SELECT BYTES, 'admin', BYTES, n, n FROM n WHERE n < 400""",
    """relay.known_clients (mark, role, right_at)
    SELECT BYTES, 'admin', n FROM n WHERE n < 200""",
)

_VALUES: Mapping[str, object] = {
    **dict.fromkeys(("actor", "address", "asked", "name", "result", "selection", "target"), "{}"),
    **dict.fromkeys(("report", "stand_in", "stored", "wiped"), "{}"),
    **dict.fromkeys(("digest", "first", "last", "mark", "secret", "token"), b"7"),
    **dict.fromkeys(("people", "half_hours", "viewers", "videos"), b"7"),
    "before": 1 << 40,
    "forgotten": 100,
    "limit": 9,
    "old": 100,
    "operation": "op7",
    "outcome": "dead",
    "reason": "no",
    "role": "admin",
    "sink": "sink1",
    "skew": 0,
    "source": "source1",
    "state": "active",
    "step": "started",
    "via": "{}",
    "video_id": "v7",
}
"""What a statement may be asked for; numbers and times are near the end of the tables."""
_LISTS = {"sinks": '["sink1"]'}
_MONTH = {"since": (ROWS - 100) * DAY_MS, "until": (ROWS - 70) * DAY_MS}


@pytest.fixture(params=["sqlite_place", pytest.param("postgres_place", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest) -> Place:
    """Return a place that no other test uses, because what the server knows of its tables stays."""
    found: Place = request.getfixturevalue(request.param)
    return found


def _fill(place: Place) -> None:
    is_postgres = isinstance(place, PostgresPlace)
    number, body = (
        ("CAST(CAST(n AS text) AS bytea)", "CAST(repeat('x', 400) AS bytea)")
        if is_postgres
        else ("CAST(n AS BLOB)", "zeroblob(400)")
    )
    for rows in _FILLED:
        text = f"{_N} INSERT INTO {rows.replace('BYTES', number).replace('BODY', body)}"
        place.rows(text.replace("% ", "%% ") if is_postgres else text, ROWS)
        if is_postgres:
            place.rows(f"ANALYZE {rows.partition(' ')[0]}")


def _values(sql: str) -> dict[str, Any]:
    def value(name: str) -> object:
        if f"json_each(:{name})" in sql:
            return _LISTS.get(name, "[2900]")
        if "main.audience_days" in sql and name in _MONTH:
            return _MONTH[name]
        return _VALUES.get(name, ROWS - 100)

    return {name: value(name) for name in re.findall(r":([a-z]\w*)", sql)}


async def _explain(store: Store, how: str, sql: Sql, values: Mapping[str, Any]) -> list[Any]:
    """Explain it as the store runs it."""
    reader = cast("Any", store)._shared.reader
    rows: list[Any] = await reader.read(
        lambda db: db.execute(Sql(f"{how} {sql}"), values).fetchall()
    )
    return rows


async def test_each_engine_understands_all_statements(store: Store) -> None:
    refused = {}
    for name, sql in STATEMENTS.items():
        try:
            await _explain(store, "EXPLAIN", sql, dict.fromkeys(_values(sql)))
        except Exception as error:  # noqa: BLE001  each is reported
            refused[name] = error
    assert refused == {}


async def test_no_statement_returns_what_only_one_engine_has(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    known = {psycopg.adapters.types[name].oid for name in ("int2", "int4", "int8", "text", "bytea")}
    odd = {}
    async with postgres_place.open(clock) as store:
        for name, sql in STATEMENTS.items():
            if not re.match(r"\s*(SELECT|WITH)", sql):
                continue

            def read(db: Database, sql: Sql = sql) -> set[int]:
                cursor = db.execute(sql, _values(sql))
                return {column.type_code for column in cursor.description or ()}

            columns: set[int] = await cast("Any", store)._shared.reader.read(read)
            if not columns <= known:
                odd[name] = columns - known
    assert odd == {}


def _tables(sql: str) -> Mapping[str, str]:
    """Return the tables of a statement by the names that it gives them."""
    found = re.findall(r"\bmain\.(\w+)(?: AS (\w+))?", sql)
    return {alias or table: table for table, alias in found} | {table: table for table, _ in found}


def _reads_too_much(place: Place, sql: str, plan: str) -> bool:
    tables = _tables(sql)
    if set(tables.values()) <= FEW.keys():
        return False
    if isinstance(place, PostgresPlace):
        scanned = set(re.findall(r"Seq Scan on (\w+)", plan)) - FEW.keys()
        sorts = re.findall(r"\bSort  \(.*? rows=(\d+)", plan)
        return bool(scanned) or any(int(rows) > SORTED_MAX for rows in sorts)
    # In the order of an index, up to the limit.
    is_bounded = "LIMIT" in sql
    scanned = {tables.get(name) for name in re.findall(r"SCAN (?:main\.)?(\w+)", plan)}
    scanned -= {None, *FEW}
    return "TEMP B-TREE" in plan or (bool(scanned) and not is_bounded)


async def test_no_statement_scans_a_table_or_sorts(place: Place, store: Store) -> None:
    _fill(place)
    how = "EXPLAIN" if isinstance(place, PostgresPlace) else "EXPLAIN QUERY PLAN"
    plans = {}
    for name, sql in STATEMENTS.items():
        rows = await _explain(store, how, sql, _values(sql))
        plan = "\n".join(str(row[-1]) for row in rows)
        if _reads_too_much(place, sql, plan) and name not in SCANS:
            plans[name] = plan
    assert plans == {}


def test_each_exception_is_of_a_statement() -> None:
    assert set(SCANS) <= set(STATEMENTS)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM main.events WHERE id LIKE 'a%'",
        "SELECT id -- of all\nFROM main.events",
        "SELECT CAST(id AS integer) FROM main.events",
        "SELECT id FROM main.events WHERE id = ?",
        "SELECT id::text FROM main.events",
        "SELECT id FROM main.events LIMIT -1",
        "SELECT lower(id) FROM main.events",
        "SELECT /* all */ id FROM main.events",
    ],
)
def test_what_means_something_else_to_one_engine_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not for both engines"):
        Sql(text)


def test_a_filter_has_the_conditions_of_the_values_that_are_given() -> None:
    filtered = FilteredSql("SELECT 1 WHERE {where}", {"a": "x = :a", "b": "y = :b"})
    assert filtered.by({"a": 1, "b": None}) == "SELECT 1 WHERE x = :a"
    assert filtered.by({}) == "SELECT 1 WHERE TRUE"
    assert filtered.strictest == "SELECT 1 WHERE x = :a AND y = :b"


def test_a_condition_without_a_value_is_left_out() -> None:
    given, missing = Condition("x = :a", {"a": 1}), Condition("y = :b", {"b": None})
    assert all_of(ALL, given, missing) == given
    assert all_of(missing) == ALL
    both = any_of([given, Condition("y = :b", {"b": 2})])
    assert all_of(both, Condition("z", {})) == ("(x = :a OR y = :b) AND z", {"a": 1, "b": 2})


async def test_greatest_and_least_ignore_null(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    sql = Sql("SELECT greatest(NULL, 1, 2), least(2, NULL, 1), greatest(NULL)")
    async with sqlite_place.open(clock) as store:
        rows = await cast("Any", store)._shared.reader.read(
            lambda db: db.execute(sql, {}).fetchall()
        )
    assert rows == [(2, 1, None)]
