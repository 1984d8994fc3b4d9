"""Writes the ids of a full period to their table, in order and in short transactions."""

from functools import partial

import orjson

from relay.store.sqlite import id_periods, queries
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.group_commit import GroupCommit

STEP_ROWS = 256
"""Ids written in one transaction, to which they add about a millisecond."""

# One row of JSON, because Python's lock changes hands at each row.
_IN_ORDER = """
SELECT json_group_array(seq) FROM (
    SELECT seq FROM events WHERE seq >= ? AND seq < ? ORDER BY source, id
)
"""
# From the events, because one may have been removed or erased since the numbers were read. A step
# is repeated if the last relay was killed before the period was done.
_ADD = f"""
INSERT INTO ids
SELECT e.seq >> {id_periods.BITS}, e.source, e.id, e.seq
FROM json_each(?) AS n CROSS JOIN events AS e ON e.seq = n.value
WHERE true ON CONFLICT DO NOTHING
"""


async def write(period: int, writer: GroupCommit, reader: Connection) -> None:
    """Write the ids of the oldest period that is not indexed, and mark it as indexed.

    It has to be full for good. Raises StoreError; it can be written again then.
    """
    end = id_periods.first(period + 1)
    seqs = await reader.read(lambda db: _in_order(db, period))
    for start in range(0, len(seqs), STEP_ROWS):
        step = orjson.dumps(seqs[start : start + STEP_ROWS]).decode()
        await writer.execute(_ADD, (step,))
    await writer.transact(partial(queries.remember, name=id_periods.INDEXED, value=end))


def _in_order(db: sqlite3.Connection, period: int) -> list[int]:
    between = id_periods.first(period), id_periods.first(period + 1)
    seqs: list[int] = orjson.loads(db.execute(_IN_ORDER, between).fetchone()[0])
    return seqs
