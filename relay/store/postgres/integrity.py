"""Inspections of a store in PostgreSQL, while relays write to it.

They find what the relay can judge: its schema, bodies that differ from what was received, damaged
counts of the audience, and rows of events that are missing. The server's own checks (`pg_amcheck`,
data checksums) find the rest.
"""

from collections.abc import Callable

from relay.core.delivery import Status
from relay.core.errors import StoreError
from relay.store.audience import days
from relay.store.audience.writes import all_sets
from relay.store.integrity import Inspection, StoreContent, age
from relay.store.postgres import digests, schema, server
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database, psycopg
from relay.store.postgres.errors import startup_error

_SCHEMA = "SELECT coalesce(max(number), 0) FROM relay.migrations"
_COUNTS = "SELECT (SELECT count(*) FROM relay.events), (SELECT count(*) FROM relay.unreadable)"
_DELIVERIES = "SELECT status, count(*) FROM relay.deliveries GROUP BY status"
_SINKS = """
SELECT sink, status, count(*) FROM relay.deliveries WHERE status IN ('pending', 'dead')
GROUP BY sink, status ORDER BY sink
"""


async def inspect(connect: Callable[[], Connection], name: str) -> Inspection:
    """Read the whole store, on a connection of its own."""
    connection = connect()
    try:
        size = await connection.run(lambda db: server.size_bytes(db, name))
        content = await connection.run(_content)
        found = await connection.run(schema.found)
        faults = await connection.run(_faults)
    except psycopg.errors.UndefinedTable:
        return Inspection(0, None, (f"the schema {name} is not a store; serve creates it",))
    except psycopg.Error as error:
        return Inspection(0, None, (str(startup_error(error)),))
    except StoreError as error:
        return Inspection(0, None, (str(error),))
    finally:
        # Also ends the statement of an inspection that was cancelled.
        await connection.cut_off()
    return Inspection(size, content, (*age(found, schema.steps()[-1].number), *faults))


def _faults(db: Database) -> tuple[str, ...]:
    return digests.faults(db) + days.damaged(all_sets(db))


def _content(db: Database) -> StoreContent:
    with db.snapshot():
        ((number,),) = db.execute(_SCHEMA)
        ((events, unreadable),) = db.execute(_COUNTS)
        deliveries = dict.fromkeys(Status, 0)
        deliveries |= {Status(status): count for status, count in db.execute(_DELIVERIES)}
        sinks: dict[str, dict[Status, int]] = {}
        for sink, status, count in db.execute(_SINKS):
            sinks.setdefault(sink, dict.fromkeys(Status, 0))[Status(status)] = count
    return StoreContent(number, events, unreadable, deliveries, sinks)
