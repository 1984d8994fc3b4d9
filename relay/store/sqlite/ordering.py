"""Ordering keys: deliveries of one sink and one key go one after another, in order of acceptance.

Of the pending deliveries that share a turn, the first is due like any other. The rest are held:
`HELD_MS` is added to their due times, so that queries for due deliveries never read them, however
many they are. The end of the first one releases the next, in the same transaction.
"""

from collections.abc import Iterable

from relay.store.keyed_digests import key
from relay.store.ordering import HELD_MS, OrderingKeys
from relay.store.sqlite.driver import sqlite3

TRIGGER = f"""
CREATE TEMP TRIGGER pass_on AFTER UPDATE OF status ON main.deliveries
WHEN OLD.turn IS NOT NULL AND NEW.status <> 'pending' BEGIN
    UPDATE deliveries SET turn = NULL WHERE event = OLD.event AND sink = OLD.sink;
    UPDATE deliveries SET due_at = due_at - {HELD_MS}
    WHERE OLD.due_at < {HELD_MS} AND due_at >= {HELD_MS} AND sink = OLD.sink AND event = (
        SELECT min(event) FROM deliveries WHERE sink = OLD.sink AND turn = OLD.turn
    );
END;
"""
"""Runs at every end of a delivery: an attempt, an erasure, a replay that is taken back."""

HELD_BACK = f"""
iif(
    {{turn}} IS NOT NULL
        AND EXISTS (SELECT 1 FROM deliveries WHERE sink = {{sink}} AND turn = {{turn}}),
    {HELD_MS}, 0
)
"""
"""Offset to the due time of a new delivery."""

_FORGET_KEY = """
DELETE FROM keys
WHERE name = 'turns' AND NOT EXISTS (SELECT 1 FROM deliveries WHERE turn IS NOT NULL)
"""
_HOLD = f"""
UPDATE deliveries SET turn = ?, due_at = due_at + {HELD_MS}
WHERE event = ? AND sink = ? AND status = 'pending' AND replay = ? AND turn IS NULL
"""
_RELEASE = f"""
UPDATE deliveries SET due_at = due_at - {HELD_MS}
WHERE sink = ?1 AND event = (SELECT min(event) FROM deliveries WHERE sink = ?1 AND turn = ?2)
    AND NOT EXISTS (
        SELECT 1 FROM deliveries WHERE sink = ?1 AND turn = ?2 AND due_at < {HELD_MS}
    )
"""


def ordering_keys(db: sqlite3.Connection) -> OrderingKeys:
    """Use the secret of a store, a new one if no delivery has a turn.

    Old turns in unused parts of the file are then comparable with nothing.
    """
    db.execute(_FORGET_KEY)
    return OrderingKeys(key(db, "turns"))


def line_up(
    db: sqlite3.Connection, sink: str, replay: int, opened: Iterable[tuple[int, int]]
) -> None:
    """Hold and release deliveries that a replay has just opened: events with their turns."""
    opened = tuple(opened)
    db.executemany(_HOLD, [(turn, event, sink, replay) for event, turn in opened])
    db.executemany(_RELEASE, [(sink, turn) for turn in {turn for _, turn in opened}])
