"""A store whose file is truncated in place, and one that grows and shrinks as it should."""

import os
from pathlib import Path
from typing import Any

import pytest

from relay.core.config_values import Duration
from relay.core.errors import StoreBroken
from relay.store.sqlite import disk, retention
from relay.store.sqlite.driver import open_reader, sqlite3
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore
from tests.conftest import ManualClock
from tests.store.conformance import accept, event
from tests.store.places import opened

DAY_MS = 86_400_000
SHORT = Duration.parse("1d")
KEPT: dict[str, Any] = {"payload_retention": SHORT, "dedupe_retention": SHORT}


def _write_home(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


async def fill(store: SqliteStore, count: int) -> None:
    """Accept events without a sink, which retention may remove."""
    await accept(store, *(event(f"{count}-{n}", seed=n) for n in range(count)), verdicts=())


@pytest.mark.parametrize("left", [0.0, 0.3, 0.9])
async def test_nothing_is_accepted_after_the_file_was_truncated(
    path: Path, clock: ManualClock, left: float
) -> None:
    async with opened(path, clock, **KEPT) as store:
        await fill(store, 300)
        await store._writer.run_exclusive(_write_home)
        await accept(store, event("before"))
        os.truncate(path, int(path.stat().st_size * left))
        for _ in range(2):
            with pytest.raises(StoreBroken, match=r"relay\.db was cut short"):
                await store.accept(event("after"), [], lambda _: None)
        with pytest.raises(StoreBroken):
            await store.probe(size=1024)


async def test_closing_reports_a_truncated_file(path: Path, clock: ManualClock) -> None:
    store = await open_store(SqliteSettings(path=str(path)), clock=clock)
    await fill(store, 300)
    await store._writer.run_exclusive(_write_home)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(StoreBroken, match="cut short"):
        await store.close()
    disk.lock(path).close()


async def test_a_file_behind_its_log_is_sound(path: Path, clock: ManualClock) -> None:
    async with opened(path, clock, **KEPT) as store:
        for round_ in range(5):
            await fill(store, 100 + round_)
            assert path.stat().st_size < await _bytes_in_use(store)
        assert await accept(store, event("last")) == ["accepted"]


async def _bytes_in_use(store: SqliteStore) -> int:
    return await store._writer.run_exclusive(
        lambda db: int(
            db.execute(
                "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            ).fetchone()[0]
        )
    )


async def test_a_store_may_shrink_and_grow_beside_readers(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers hold back checkpoints, so that the file lags behind in every way."""
    monkeypatch.setattr(retention, "SPARE_PAGES", 1)
    sizes = set[int]()
    async with opened(path, clock, **KEPT) as store:
        for round_ in range(4):
            reader = await open_reader(path)
            await fill(store, 500 + round_)
            await reader.run(lambda db: db.execute("BEGIN").execute("SELECT 1 FROM events"))
            await store._writer.run_exclusive(_write_home)
            sizes.add(path.stat().st_size)
            clock.ms += 3 * DAY_MS
            while await store.expire(now_ms=clock.ms):
                await store._writer.run_exclusive(_write_home)
            await fill(store, 20 + round_)
            await reader.close()
            await store._writer.run_exclusive(_write_home)
            sizes.add(path.stat().st_size)
            assert await accept(store, event(f"round-{round_}")) == ["accepted"]
    assert len(sizes) > 2
    assert max(sizes) > 2 * min(sizes)
