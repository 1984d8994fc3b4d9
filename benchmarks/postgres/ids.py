"""What many kept ids cost the acceptance of new ones."""

import time
from functools import partial

from benchmarks.postgres.acknowledge import on_postgres
from benchmarks.postgres.server import Server
from benchmarks.rounds import Rounds
from relay.store.postgres.settings import PostgresSettings

_STEP = 500_000
# Events whose bodies retention has removed. The audience has counted them.
_FILL = """
INSERT INTO {schema}.events (source, id, kind, received_at, digest)
SELECT 'main', 'evt_' || left(md5(random()::text || n), 20), 'video.watched', {now_ms},
    sha256(n::text::bytea)
FROM generate_series(1, {rows}) AS n
"""
_COUNTED = """
INSERT INTO {schema}.state (name, value)
SELECT 'audience', last_value FROM {schema}.events_seq_seq
ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


def measure(server: Server, *, rounds: int, seconds: int, ids: int) -> None:
    """Take turns between an empty store and the full one."""
    empty, full = "no id kept", f"{ids:,} ids kept"
    with server.schema() as settings:
        _fill(server, settings, ids)
        turns = {
            empty: partial(_on_empty, server, seconds),
            full: partial(on_postgres, settings, seconds),
        }
        found = Rounds.take(turns, rounds)
    print(f"acknowledged on PostgreSQL, {rounds} rounds")
    found.print("per second", [(full, empty)])


def _on_empty(server: Server, seconds: int) -> float:
    with server.schema() as settings:
        return on_postgres(settings, seconds)


def _fill(server: Server, settings: PostgresSettings, ids: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    for done in range(0, ids, _STEP):
        rows = min(_STEP, ids - done)
        server.execute(_FILL.format(schema=settings.schema, now_ms=now_ms, rows=rows))
    server.execute(_COUNTED.format(schema=settings.schema))
    server.execute(f"VACUUM ANALYZE {settings.schema}.events")
