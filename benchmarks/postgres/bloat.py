"""What settled deliveries leave behind, and what it costs leases, with an old transaction open."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import NamedTuple

import psycopg
import uvloop

from benchmarks import backlog, requests, rig
from benchmarks.postgres.server import Server
from relay.core.clock import SystemClock
from relay.core.delivery import Attempt, Delivery, Settlement
from relay.store import Tier
from relay.store.postgres.opening import open_store
from relay.store.postgres.settings import PostgresSettings
from relay.store.postgres.store import PostgresStore
from tests.store.places import OnlyRelay

_SINK = "sink"
_PENDING = 2_048
"""Deliveries that are accepted before they are leased."""
_BATCH = 256
_LIMITS: dict[Tier, int] = {"live": _BATCH, "replay": _BATCH, "tried": _BATCH}
_LEFT = """
SELECT s.n_dead_tup, t.dead_tuple_count, pg_table_size(s.relid), pg_indexes_size(s.relid)
FROM pg_stat_user_tables s, pgstattuple(s.relid) t
WHERE s.schemaname = '{schema}' AND s.relname = 'deliveries'
"""


class _Times(NamedTuple):
    """Milliseconds of each lease and each settlement of a quarter."""

    leases: list[float]
    settlements: list[float]


def measure(server: Server, *, settlements: int) -> None:
    """Settle as many deliveries, without an old transaction and with one."""
    print(f"{settlements:,} settlements through one sink, {_BATCH} at a time")
    rows: list[tuple[str, ...]] = [
        ("old transaction", "ms a lease, by quarter", "longest", "ms a settlement", "longest")
    ]
    left: list[tuple[str, ...]] = [
        ("old transaction", "n_dead_tup", "dead by pgstattuple", "table", "indexes")
    ]
    server.execute("CREATE EXTENSION IF NOT EXISTS pgstattuple")
    for is_held in (False, True):
        name = "held open" if is_held else "none"
        with server.schema() as settings, ExitStack() as stack:
            if is_held:
                stack.enter_context(_old_transaction(settings))
            quarters = uvloop.run(_settle(settings, settlements))
            rows.append(
                (
                    name,
                    *_printed([each.leases for each in quarters]),
                    *_printed([each.settlements for each in quarters]),
                )
            )
            left.append((name, *_left(server, settings)))
    rig.table(rows)
    rig.table(left)


@contextmanager
def _old_transaction(settings: PostgresSettings) -> Iterator[None]:
    """Hold a snapshot, as a long dump does."""
    with psycopg.connect(settings.dsn.reveal()) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute("SELECT txid_current_snapshot()")
        yield


async def _settle(settings: PostgresSettings, settlements: int) -> list[_Times]:
    bodies = iter(requests.bodies(settlements))
    store = await open_store(settings, clock=SystemClock(), fences=OnlyRelay())
    quarters = []
    for _ in range(4):
        times = _Times([], [])
        for done in range(0, settlements // 4, _PENDING):
            count = min(_PENDING, settlements // 4 - done)
            await backlog.accept(store, _SINK, (next(bodies) for _ in range(count)))
            await _drain(store, count, times)
        quarters.append(times)
    await store.close()
    return quarters


async def _drain(store: PostgresStore, count: int, times: _Times) -> None:
    while count:
        started = time.perf_counter()
        now_ms = time.time_ns() // 1_000_000
        lease = await store.lease(_SINK, now_ms=now_ms, limits=_LIMITS)
        leased = time.perf_counter()
        if not lease.deliveries:
            continue
        await store.settle(*(_delivered(each, now_ms) for each in lease.deliveries))
        times.leases.append((leased - started) * 1_000)
        times.settlements.append((time.perf_counter() - leased) * 1_000)
        count -= len(lease.deliveries)


def _delivered(delivery: Delivery, now_ms: int) -> Settlement:
    attempt = Attempt(started_ms=now_ms, duration_ms=5, result="delivered", status=200)
    return Settlement(delivery=delivery, attempt=attempt, due_ms=now_ms)


def _printed(quarters: list[list[float]]) -> tuple[str, str]:
    """Return the median of each quarter, and the longest of all."""
    medians = ", ".join(f"{median(each):.1f}" for each in quarters)
    return medians, f"{max(map(max, quarters)):.0f}"


def _left(server: Server, settings: PostgresSettings) -> tuple[str, ...]:
    time.sleep(1)  # The server's statistics are up to a second behind.
    ((noted, dead, table, indexes),) = server.execute(_LEFT.format(schema=settings.schema))
    return f"{noted:,}", f"{dead:,}", f"{table / 1e6:.0f} MB", f"{indexes / 1e6:.0f} MB"
