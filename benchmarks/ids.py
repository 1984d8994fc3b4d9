"""What ten million stored ids cost acknowledgements, and the start.

`python -m benchmarks.ids [--ids IDS] [--rounds ROUNDS] [--seconds SECONDS]`
"""

import argparse
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import uvloop

from benchmarks import load, requests, rig
from relay.app.maintenance import AUDIENCE_PAUSE_S
from relay.core.clock import SystemClock
from relay.store import engines
from relay.store.audience import rollup
from relay.store.sqlite import id_periods
from relay.store.sqlite.audience_tables import SqliteAudienceTables
from relay.store.sqlite.settings import SqliteSettings
from tests.ports import free_port

RATE_MAX = 20_000
"""More requests a second than the relay answers, so that no event is sent twice."""

BUILD_S = 1800.0
"""Deadline of the filters of a store that had none."""

COUNT_S = 120.0
"""Deadline of the audience of the events of one turn."""

AUDIENCE_LOOK_S = 4 * AUDIENCE_PAUSE_S
"""Time in which the relay notices that it is complete."""

_STEP = 100_000
# Events whose bodies retention has removed. The audience has counted them.
_FILL = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
INSERT INTO events (source, id, kind, received_at, digest)
SELECT 'main', 'evt_' || lower(hex(randomblob(10))), 'video.watched', ?, randomblob(32)
FROM numbers
"""
_COUNTED = """
INSERT INTO state SELECT 'audience', max(seq) FROM events WHERE true
ON CONFLICT DO UPDATE SET value = excluded.value
"""
# What a relay does period by period while they come.
_MARK_INDEXED = "INSERT INTO state SELECT ?, max(seq) >> ?2 << ?2 FROM events"
_INDEX = """
INSERT INTO ids SELECT seq >> ?1, source, id, seq FROM events
WHERE seq < (SELECT value FROM state WHERE name = ?2) ORDER BY 1, 2, 3
"""
FAST = "PRAGMA synchronous = OFF; PRAGMA cache_size = -500000; PRAGMA wal_autocheckpoint = 10000;"


class Turn(NamedTuple):
    """What one store did under load."""

    rate: float
    p99_ms: float
    p999_ms: float
    worst_ms: float
    start_s: float
    resident_mib: float


def main() -> None:
    options = _options()
    found: dict[str, list[Turn]] = {"empty": [], "full": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        full = rig.Relay(_made(folder / "full"), [rig.http_sink(free_port())])
        build_s = _prepare(full, options.ids)
        half = 0.0
        for number in range(options.rounds):
            empty = rig.Relay(_made(folder / str(number)), [rig.http_sink(free_port())])
            # The second of a round finds the machine as warm as the first.
            for which, relay in (("empty", empty), ("full", full)):
                turn = _turn(relay, folder, seconds=options.seconds, rate=half)
                half = half or turn.rate / 2
                found[which].append(turn)
        size_mib = full.database.stat().st_size / (1 << 20)
    print(rig.machine())
    print(f"{options.ids:,} ids: {size_mib:.0f} MiB, filters made in {build_s:.0f} s")
    _print(found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=6)
    return parser.parse_args()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _prepare(relay: rig.Relay, ids: int) -> float:
    """Fill the store; return the seconds that a running relay took to make its filters."""
    assert isinstance(relay.store, SqliteSettings)
    uvloop.run(_create(relay.store))
    now_ms = time.time_ns() // 1_000_000
    with closing(sqlite3.connect(relay.database, isolation_level=None)) as db:
        db.executescript(FAST)
        for done in range(0, ids, _STEP):
            db.execute(_FILL, (min(_STEP, ids - done), now_ms))
        db.execute(_COUNTED)
        index(db)
        full = id_periods.of(ids)
    with relay.running(), closing(sqlite3.connect(relay.database)) as db:
        began = time.monotonic()
        rig.until(lambda: _filters(db) >= full, seconds=BUILD_S)
        return time.monotonic() - began


def index(db: sqlite3.Connection) -> None:
    """Index the ids of events that another program has written."""
    db.execute(_MARK_INDEXED, (id_periods.INDEXED, id_periods.BITS))
    db.execute(_INDEX, (id_periods.BITS, id_periods.INDEXED))


def _filters(db: sqlite3.Connection) -> int:
    """Return the number of periods that have a filter."""
    return sum(periods.bit_count() for (periods,) in db.execute("SELECT periods FROM id_filters"))


def _has_audience(database: Path) -> bool:
    """Whether all events are counted, by day too."""
    with closing(sqlite3.connect(database)) as db:
        tables = SqliteAudienceTables(db)
        return tables.oldest_uncounted() is None and rollup.next_batch(tables) is None


async def _create(settings: SqliteSettings) -> None:
    await (await engines.open_store(settings, clock=SystemClock())).close()


def _turn(relay: rig.Relay, folder: Path, *, seconds: int, rate: float) -> Turn:
    file = folder / "requests"
    requests.write(file, RATE_MAX * seconds)
    with relay.running() as running:
        # The audience of the turn before is no cost of its ids; the relay of an empty store looks
        # for more only ten seconds after its start.
        rig.until(lambda: _has_audience(relay.database), seconds=COUNT_S)
        time.sleep(AUDIENCE_LOOK_S)
        flooded = load.flood(relay.listen, file, seconds=seconds)
        if running.metric('relay_requests_total{code="200"'):
            sys.exit("the file of requests was too short: some events came twice")
        times = uvloop.run(load.paced(relay.listen, rate=rate or flooded / 2, seconds=seconds))
        resident = running.resident_mib()
    waits_ms = sorted((answered - due) / 1e6 for due, answered in times.values())
    cuts = quantiles(waits_ms, n=1000)
    return Turn(flooded, cuts[989], cuts[998], waits_ms[-1], running.start_s, resident)


def _print(found: dict[str, list[Turn]]) -> None:
    names = ("per second", "p99 ms", "p99.9 ms", "worst ms", "start s", "MiB")
    rows: list[tuple[str, ...]] = [("medians; latency at half of the load", *names)]
    for which, turns in found.items():
        columns = zip(*turns, strict=True)
        rows.append((which, *(f"{median(column):.4g}" for column in columns)))
    ratios = [
        [full / empty for full, empty in zip(*columns, strict=True)]
        for columns in zip(
            zip(*found["full"], strict=True), zip(*found["empty"], strict=True), strict=True
        )
    ]
    rows.append(
        (
            "full to empty, least and most",
            *(f"{median(each):.2f} ({min(each):.2f}-{max(each):.2f})" for each in ratios),
        )
    )
    rig.table(rows)


if __name__ == "__main__":
    main()
