"""The stores there are, each judged by the one suite; a new one is a line in STORES."""

import random
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, closing as closing_file
from pathlib import Path
from typing import Any

import pytest

from relay.delivery import Delivery, Result
from relay.settings import Size
from relay.store import Store, StoreSettings
from relay.store.sqlite import open_store
from tests.conftest import NOW_MS, ManualClock
from tests.store import conformance
from tests.store.conformance import (
    FAILS,
    OTHER,
    TAKES,
    Shelf,
    accept,
    event,
    lease,
    settlement,
)

STORES: dict[str, Callable[[Path, ManualClock], Shelf]] = {}


def rows(path: Path, sql: str) -> list[Any]:
    with closing_file(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute(sql).fetchall()


def sqlite_shelf(folder: Path, clock: ManualClock) -> Shelf:
    path = folder / "relay.db"
    settings = StoreSettings(path=str(path), min_free=Size.parse("1B"))

    def opened() -> AbstractAsyncContextManager[Store]:
        return _Opened(lambda: open_store(settings, clock=clock))

    async def deliveries() -> dict[tuple[str, str, str], tuple[str, str | None]]:
        found = rows(
            path,
            "SELECT source, id, sink, status, reason FROM deliveries JOIN events ON seq = event",
        )
        return {row[:3]: row[3:] for row in found}

    async def attempts() -> list[tuple[str, str, str]]:
        return rows(
            path,
            "SELECT id, sink, result FROM attempts JOIN events ON seq = event "
            "ORDER BY attempts.rowid",
        )

    async def unreadable() -> int:
        return int(rows(path, "SELECT count(*) FROM unreadable")[0][0])

    return Shelf(opened, clock, deliveries, attempts, unreadable)


STORES["sqlite"] = sqlite_shelf


class _Opened:
    def __init__(self, open_: Callable[[], Awaitable[Store]]) -> None:
        self._open = open_

    async def __aenter__(self) -> Store:
        self._store = await self._open()
        return self._store

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()


@pytest.fixture(params=sorted(STORES))
def shelf(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Shelf:
    return STORES[request.param](tmp_path, clock)


class TestAccepting(conformance.Accepting):
    pass


class TestLeasing(conformance.Leasing):
    pass


class TestSettling(conformance.Settling):
    pass


class TestCounting(conformance.Counting):
    pass


@pytest.mark.parametrize("seed", range(6))
async def test_the_tallies_equal_a_count_after_any_walk(shelf: Shelf, seed: int) -> None:
    dice = random.Random(seed)
    results: tuple[Result, ...] = ("delivered", "retry", "parked", "dead")
    held: list[Delivery] = []
    old: list[Delivery] = []
    now_ms = NOW_MS

    async def arrive(store: Store) -> None:
        verdicts = dice.choice([[TAKES], [OTHER], [TAKES, OTHER], [FAILS, OTHER], []])
        some = [event(f"e{dice.randrange(60)}", at_ms=now_ms) for _ in range(dice.randrange(1, 5))]
        await accept(store, *some, verdicts=verdicts)

    async def take(store: Store) -> None:
        sink = dice.choice(["sales", "crm"])
        found = await lease(store, sink, now_ms=now_ms, limit=dice.randrange(1, 8))
        assert not {(d.seq, d.sink) for d in found.deliveries} & {(d.seq, d.sink) for d in held}
        held.extend(found.deliveries)

    async def settle(store: Store) -> None:
        if held:
            one = held.pop(dice.randrange(len(held)))
            old.append(one)
            due_ms = now_ms + dice.randrange(5000)
            await store.settle(settlement(one, dice.choice(results), due_ms=due_ms, at_ms=now_ms))

    async def settle_late(store: Store) -> None:
        stale = [d for d in old if (d.seq, d.sink) not in {(h.seq, h.sink) for h in held}]
        if stale:
            await store.settle(settlement(dice.choice(stale), dice.choice(results)))

    async def give_back(store: Store) -> None:
        if held:
            store.release([held.pop()])

    for _ in range(3):
        async with shelf.open() as store:
            for _ in range(60):
                step = dice.choice([arrive, arrive, take, settle, settle, settle_late, give_back])
                await step(store)
                now_ms += dice.randrange(2000)
            counted = Counter(
                (sink, status) for (_, _, sink), (status, _) in (await shelf.deliveries()).items()
            )
            backlogs = await store.backlogs()
            for sink in ("sales", "crm"):
                assert backlogs[sink].pending == counted[sink, "pending"]
                assert backlogs[sink].dead == counted[sink, "dead"]
        held.clear()
