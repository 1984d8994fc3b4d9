"""Personal data is erased and exported, and only that of the person."""

import asyncio
import dataclasses
import hashlib
import sqlite3
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog.testing
from msgspec.structs import replace

from relay.core.authentication import UnverifiedRequest
from relay.core.config_values import Size
from relay.core.delivery import Delivery, Result
from relay.core.errors import StoreBroken
from relay.core.event import Event, Unreadable
from relay.store import stepwise_personal_data
from relay.store.personal_data import Erasure, Records
from relay.store.replays import Mark, PlannedDelivery
from relay.store.selection import Selection
from relay.store.sqlite import queries
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore, open_store
from tests.conftest import NOW_MS, ManualClock
from tests.sinks.far_end import until
from tests.store.conformance import OTHER, TAKES, accept, lease, settlement

ANN = "ann.lee@example.com"
WRITTEN = (ANN, "Ann.Lee@Example.COM", "ANN.LEE@EXAMPLE.COM")


@asynccontextmanager
async def opened(folder: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    settings = SqliteSettings(path=str(folder / "relay.db"), min_free=Size.parse("1B"))
    store = await open_store(settings, clock=clock)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path, clock) as one:
        yield one


def event(event_id: str, email: str = ANN, *, kind: str = "lead.captured") -> Event:
    body = orjson.dumps({"id": event_id, "event": kind, "data": {"email": email, "name": "N. N."}})
    return Event(
        source="main",
        id=event_id,
        kind=kind,
        created_at="2026-03-02T09:30:00Z",
        received_ms=NOW_MS,
        body=body,
        headers=b"host: relay\r\n",
    )


def odd(body: bytes) -> Unreadable:
    return Unreadable(source="main", received_ms=NOW_MS, body=body, headers=b"", reason="odd")


async def settle(
    store: SqliteStore,
    *deliveries: Delivery,
    result: Result = "delivered",
    answer: str = "thanks",
    at_ms: int = NOW_MS,
) -> None:
    for each in deliveries:
        made = settlement(each, result, at_ms=at_ms)
        await store.settle(replace(made, attempt=replace(made.attempt, answer=answer)))


async def leased(store: SqliteStore, sink: str = "sales") -> tuple[Delivery, ...]:
    return (await lease(store, sink)).deliveries


def ask(store: SqliteStore, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as db:
        return db.execute(sql).fetchall()


async def erase(store: SqliteStore, email: str = ANN) -> Erasure:
    return await store.personal_data.erase(email, now_ms=NOW_MS + 10)


def in_files(folder: Path, *texts: str) -> dict[str, list[str]]:
    """Return the texts found in each file, case-insensitively."""
    found: dict[str, list[str]] = {}
    for text in texts:
        # In a process of its own, for one that closes the file would lose SQLite's locks on it.
        search = ["grep", "--recursive", "-ilaF", "-e", text, str(folder)]
        done = subprocess.run(search, capture_output=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        for name in done.stdout.decode().splitlines():
            found.setdefault(Path(name).name, []).append(text)
    return found


def all_of(record: Records) -> list[str]:
    return [each.event.id for each in record.events]


async def test_a_persons_events_lose_their_bodies_and_keep_their_ids(store: SqliteStore) -> None:
    await accept(store, event("a"), event("b", WRITTEN[2]), event("c", "bob@example.com"))
    erased = await erase(store)
    assert erased.events == 2
    rows = ask(store, "SELECT id, body IS NULL, headers IS NULL, created_at FROM events")
    assert rows == [
        ("a", 1, 1, None),
        ("b", 1, 1, None),
        ("c", 0, 0, "2026-03-02T09:30:00Z"),
    ]


async def test_a_late_retry_is_a_duplicate_and_restores_no_data(store: SqliteStore) -> None:
    await accept(store, event("a"))
    await store.keep(odd(f"?{ANN}".encode()), lambda _: None)
    await erase(store)
    assert await accept(store, event("a")) == ["duplicate"]
    await store.keep(odd(f"?{ANN}".encode()), lambda _: None)
    assert (await store.personal_data.count(ANN)).events == 0
    assert ask(store, "SELECT body FROM events UNION SELECT body FROM unreadable") == [(None,)]
    assert await leased(store) == ()


async def test_pending_and_dead_deliveries_are_discarded(store: SqliteStore) -> None:
    await accept(store, event("dead"))
    await settle(store, *await leased(store), result="dead")
    await accept(store, event("new"), event("bobs", "bob@example.com"))
    erased = await erase(store)
    assert (erased.pending, erased.dead, erased.under_way) == (1, 1, [])
    rows = ask(store, "SELECT event, status, reason, settled_at FROM deliveries ORDER BY event")
    assert rows[:2] == [
        (1, "discarded", "erased", NOW_MS + 10),
        (2, "discarded", "erased", NOW_MS + 10),
    ]
    assert ask(store, "SELECT answer FROM attempts") == [("",)]
    assert [each.event.id for each in await leased(store)] == ["bobs"]
    backlog = (await store.backlogs())["sales"]
    assert (backlog.pending, backlog.dead) == (1, 0)


async def test_a_delivery_in_flight_is_reported_and_leaves_no_answer(store: SqliteStore) -> None:
    await accept(store, event("a"), verdicts=[TAKES, OTHER])
    on_its_way = await leased(store)
    erased = await erase(store)
    assert [(each.sink, each.source, each.id) for each in erased.under_way] == [
        ("sales", "main", "a")
    ]
    await settle(store, *on_its_way, answer=f"hello {ANN}")
    assert ask(store, "SELECT result, answer FROM attempts") == [("delivered", "")]
    assert set(ask(store, "SELECT status FROM deliveries")) == {("discarded",)}
    assert (await store.backlogs())["sales"].pending == 0


async def test_a_concurrent_lease_is_reported(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await accept(store, event("a"))
    due, reading = queries.due, threading.Event()

    def slowly(*given: Any, **named: Any) -> Any:
        found = due(*given, **named)
        reading.set()
        deadline = time.monotonic() + 5
        while ask(store, "SELECT body FROM events") != [(None,)] and time.monotonic() < deadline:
            time.sleep(0.001)
        # Long enough for an erasure that does not wait for it to be over.
        time.sleep(0.3)
        return found

    monkeypatch.setattr(queries, "due", slowly)
    leasing = asyncio.create_task(lease(store))
    await until(reading.is_set, what="the lease's read")
    erased = await erase(store)
    (found,) = (await leasing).deliveries
    assert (found.event.id, [each.id for each in erased.under_way]) == ("a", ["a"])


async def test_an_erasure_lists_the_sinks_that_got_data(store: SqliteStore) -> None:
    await accept(store, event("a"), event("b"), verdicts=[TAKES, OTHER])
    await accept(store, event("w", kind="video.watched"), verdicts=[TAKES])
    await settle(store, *await leased(store), at_ms=NOW_MS + 7)
    first, _ = await leased(store, "crm")
    await settle(store, first, result="retry", at_ms=NOW_MS + 1)
    erased = await erase(store)
    assert [(each.sink, each.kind, each.count, each.last_ms) for each in erased.told] == [
        ("sales", "lead.captured", 2, NOW_MS + 12),
        ("sales", "video.watched", 1, NOW_MS + 12),
    ]
    assert [(each.sink, each.kind, each.count, each.last_ms) for each in erased.unconfirmed] == [
        ("crm", "lead.captured", 1, NOW_MS + 6)
    ]


async def test_answers_about_the_person_are_erased_from_other_events(
    store: SqliteStore,
) -> None:
    await accept(store, event("bobs", "bob@example.com"))
    await settle(store, *await leased(store), answer=f'{{"owner":"{WRITTEN[1]}"}}')
    erased = await erase(store)
    assert (erased.events, erased.excerpts) == (0, 1)
    assert ask(store, "SELECT answer, result FROM attempts") == [("", "delivered")]
    assert ask(store, "SELECT count(body) FROM events") == [(1,)]


@pytest.mark.parametrize(
    "selection", [Selection(email=WRITTEN[1]), Selection(words=f"Tour {WRITTEN[2]}")]
)
async def test_erasing_a_selection_by_address_does_not_select_everything(
    store: SqliteStore, selection: Selection
) -> None:
    await accept(store, event("bobs", "bob@example.com"))
    until = await store.operations.newest()
    begun = await store.operations.begin(selection, total=1, until=until, now_ms=NOW_MS)
    assert (await erase(store)).searches == 1
    replay = await store.operations.replay(begun.id)
    assert replay is not None
    assert (replay.state, replay.selection) == ("cancelled", Selection(email="(erased)"))
    assert (
        await store.operations.choose(replay.selection, (), after=0, until=Mark(9, 9), limit=9)
        == []
    )


async def test_an_erased_event_cannot_be_replayed_even_if_selected_before(
    store: SqliteStore,
) -> None:
    await accept(store, event("a"))
    await settle(store, *await leased(store))
    until = await store.operations.newest()
    begun = await store.operations.begin(Selection(), total=1, until=until, now_ms=NOW_MS)
    (chosen,) = await store.operations.choose(Selection(), (), after=0, until=until, limit=9)
    await erase(store)
    opened = await store.operations.open(
        begun, [PlannedDelivery(chosen.seq, "sales")], cursor=1, now_ms=NOW_MS
    )
    assert (opened.opened, opened.cursor) == (0, 1)
    assert await leased(store) == ()
    assert await store.operations.choose(Selection(), (), after=0, until=until, limit=9) == []


async def test_a_dry_run_counts_the_same_and_changes_nothing(store: SqliteStore) -> None:
    await accept(store, event("a"), event("b"))
    await settle(store, (await leased(store))[0], result="dead")
    await store.keep(odd(f"?{ANN}".encode()), lambda _: None)
    before = ask(store, "SELECT * FROM events"), ask(store, "SELECT * FROM deliveries")
    counted = await store.personal_data.count(WRITTEN[2])
    assert before == (ask(store, "SELECT * FROM events"), ask(store, "SELECT * FROM deliveries"))
    assert ask(store, "SELECT count(*) FROM erasures") == [(0,)]
    assert dataclasses.replace(await erase(store), wiped=False, remains="") == counted
    assert (counted.events, counted.dead, counted.pending, counted.unreadable) == (2, 1, 1, 1)


async def test_an_erasure_is_recorded_without_the_address(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with opened(tmp_path, clock) as store:
        await accept(store, event("a"))
        erased = await erase(store)
        await erase(store, WRITTEN[2])
        await erase(store, "bob@example.com")
    async with opened(tmp_path, clock) as store:
        third, second, first = await store.personal_data.erasures(limit=9)
        assert first.erasure == erased
        assert (first.begun_ms, first.ended_ms) == (NOW_MS + 10, NOW_MS + 10)
        assert first.person == second.person != third.person
        assert hashlib.sha256(ANN.encode()).hexdigest() != first.person
        assert [each.id for each in await store.personal_data.erasures(limit=1)] == [third.id]
        of_ann = await store.personal_data.erasures(limit=9, email=WRITTEN[1])
        assert [each.id for each in of_ann] == [second.id, first.id]
    assert in_files(tmp_path, ANN) == {}


async def test_an_id_that_contains_the_address_is_reported(store: SqliteStore) -> None:
    await accept(store, event(f"lead/{ANN}"))
    assert (await erase(store)).kept_ids == 1
    assert (await erase(store)).events == 0


async def test_many_rows_are_found_in_small_steps(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwise_personal_data, "SCAN_ROWS", 10)
    monkeypatch.setattr(stepwise_personal_data, "STEP_ROWS", 3)
    mine = [event(f"a{number}") for number in range(40)]
    others = [event(f"b{number}", f"x{ANN}") for number in range(40)]
    await accept(store, *(each for pair in zip(mine, others, strict=True) for each in pair))
    assert (await erase(store)).events == 40
    assert ask(store, "SELECT count(body), min(id) FROM events WHERE body IS NOT NULL") == [
        (40, "b0")
    ]


async def test_personal_data_is_exported_in_parts(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwise_personal_data, "SCAN_ROWS", 2)
    monkeypatch.setattr(stepwise_personal_data, "PART_STEPS", 2)
    await accept(store, *(event(f"a{number}") for number in range(6)))
    await accept(store, event("bobs", "bob@example.com"))
    await settle(store, *await leased(store), answer=f"I know {ANN}")
    await store.keep(odd(f"?{ANN}".encode()), lambda _: None)
    parts = [await store.personal_data.records(WRITTEN[1], after=None)]
    while parts[-1].next is not None:
        parts.append(await store.personal_data.records(WRITTEN[1], after=parts[-1].next))
    assert [each for part in parts for each in all_of(part)] == [f"a{n}" for n in range(6)]
    assert [each.body for part in parts for each in part.unreadable] == [f"?{ANN}".encode()]
    (mention,) = [each for part in parts for each in part.mentions]
    assert (mention.id, mention.attempt.answer) == ("bobs", f"I know {ANN}")
    assert len(parts) > 3
    first = parts[0].events[0]
    assert (first.body, len(first.attempts)) == (event("a0").body, 1)


@pytest.mark.parametrize("after", ["", "7.1", "1", "x.1", "0.-1", "0.1 "])
async def test_an_invalid_cursor_is_refused(store: SqliteStore, after: str) -> None:
    with pytest.raises(ValueError, match="after is invalid"):
        await store.personal_data.records(ANN, after=after)


async def test_no_file_contains_the_address_while_the_store_is_open(
    tmp_path: Path, clock: ManualClock
) -> None:
    texts = [ANN, "x-" + "personal words " * 3]
    async with opened(tmp_path, clock) as store:
        for number in range(300):
            padded = replace(
                event(f"e{number}"), body=event(f"e{number}").body + b" " * number * 30
            )
            await accept(store, padded if number % 3 else event(f"e{number}", "bob@example.com"))
        await settle(store, *(await leased(store))[:100], answer=f"got {WRITTEN[1]}")
        await store.keep(odd(f"?{ANN} {texts[1]}".encode()), lambda _: None)
        assert set(in_files(tmp_path, *texts)) >= {"relay.db-wal"}
        erased = await erase(store)
        assert erased.wiped
        assert in_files(tmp_path, *texts) == {}
        assert ask(store, "SELECT count(body) FROM events") == [(100,)]


async def test_a_reader_delays_the_wiping_and_does_not_prevent_it(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.sqlite.secure_delete.WIPE_TIMEOUT_S", 0.2)
    async with opened(tmp_path, clock) as store:
        await accept(store, event("a"))
        with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as other:
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM events").fetchone()
            assert not (await erase(store)).wiped
            started = asyncio.get_running_loop().time()
            await accept(store, event("later", "bob@example.com"))
            assert asyncio.get_running_loop().time() - started < 1
            (record,) = await store.personal_data.erasures(limit=1)
            assert record.erasure is not None
            assert not record.erasure.wiped
        await until(lambda: in_files(tmp_path, ANN) == {}, what="the log's end")


async def test_an_interrupted_wiping_continues_at_the_next_start(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.sqlite.secure_delete.WIPE_TIMEOUT_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr("relay.store.sqlite.secure_delete._truncate_log", lambda _: False)
        async with opened(tmp_path, clock) as store:
            await accept(store, event("a"))
            await erase(store)
    async with opened(tmp_path, clock) as store:
        record = (await store.personal_data.erasures(limit=1))[0]
        while record.erasure is None or not record.erasure.wiped:
            record = (await store.personal_data.erasures(limit=1))[0]


async def test_a_bug_in_the_wiping_is_logged_and_the_wiping_repeated(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr("relay.store.sqlite.secure_delete.RETRY_S", 0.01)
    async with opened(tmp_path, clock) as store:
        await accept(store, event("a"))
        with monkeypatch.context() as patch, structlog.testing.capture_logs() as lines:
            patch.setattr("relay.store.sqlite.secure_delete.WIPE_TIMEOUT_S", 0.2)
            patch.setattr("relay.store.sqlite.page_slack.leaves", fails)
            assert not (await erase(store)).wiped
            assert {(line["event"], line["error"]) for line in lines} == {("relay.bug", "KeyError")}
        assert (await erase(store)).wiped


async def test_a_store_that_breaks_during_the_wiping_is_not_wiped(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise StoreBroken("the file cannot be read")

    async with opened(tmp_path, clock) as store:
        await accept(store, event("a"))
        monkeypatch.setattr("relay.store.sqlite.page_slack.scan", breaks)
        assert not (await erase(store)).wiped


async def test_events_are_acknowledged_during_an_erasure(store: SqliteStore) -> None:
    await accept(store, *(event(f"e{number}") for number in range(400)))
    erasing = asyncio.create_task(erase(store))
    waits: list[float] = []
    clock = asyncio.get_running_loop().time
    while not erasing.done():
        started = clock()
        await accept(store, event(f"n{len(waits)}", "bob@example.com"))
        waits.append(clock() - started)
    assert (await erasing).events == 400
    assert len(waits) > 5
    assert max(waits) < 0.25


async def test_an_erasure_covers_quarantined_requests(store: SqliteStore) -> None:
    for name in ("ada", "bob"):
        body = b'{"data":{"email":"%s@example.com"}}' % name.encode()
        await store.quarantine.keep(UnverifiedRequest("main", NOW_MS, b"", b"", body))
    (found,) = (await store.personal_data.records("Ada@example.com", after=None)).unreadable
    assert (found.source, found.received_ms) == ("main", NOW_MS)
    assert found.reason == "it fits no secret of the source so far"
    assert (await store.personal_data.count("ada@example.com")).quarantine == 1
    erased = await erase(store, "ada@example.com")
    assert (erased.quarantine, erased.unreadable) == (1, 0)
    (waiting,) = await store.quarantine.waiting("main", after=0, limit=9)
    assert b"bob" in waiting.request.body
