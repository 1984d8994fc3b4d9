"""What an erasure leaves in the store's files, and what a lease beside it returns."""

import asyncio
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from msgspec.structs import replace

from relay.core.errors import StoreBroken
from relay.store.sqlite import queries
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.store import SqliteStore
from tests.conftest import ManualClock
from tests.store.conformance import accept, lease
from tests.store.places import opened
from tests.store.test_personal_data import ANN, WRITTEN, erase, event, leased, odd, settle
from tests.stub_server import until


def ask(store: SqliteStore, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as db:
        return db.execute(sql).fetchall()


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


async def test_no_file_contains_the_address_while_the_store_is_open(
    tmp_path: Path, clock: ManualClock
) -> None:
    texts = [ANN, "x-" + "personal words " * 3]
    async with opened(tmp_path / "relay.db", clock) as store:
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
    async with opened(tmp_path / "relay.db", clock) as store:
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
        async with opened(tmp_path / "relay.db", clock) as store:
            await accept(store, event("a"))
            await erase(store)
    async with opened(tmp_path / "relay.db", clock) as store:
        record = (await store.personal_data.erasures(limit=1))[0]
        while record.erasure is None or not record.erasure.wiped:
            record = (await store.personal_data.erasures(limit=1))[0]


async def test_a_bug_in_the_wiping_is_logged_and_the_wiping_repeated(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr("relay.store.sqlite.secure_delete.RETRY_S", 0.01)
    async with opened(tmp_path / "relay.db", clock) as store:
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

    async with opened(tmp_path / "relay.db", clock) as store:
        await accept(store, event("a"))
        monkeypatch.setattr("relay.store.sqlite.page_slack.scan", breaks)
        assert not (await erase(store)).wiped
