"""How the deliveries of one sink and one key come to go one after another, in order of acceptance.

Of the pending deliveries that share a turn, one is at the head and comes due like any other. The
rest are held: `HELD_MS` is added to the time at which they are due, so that no look for what is due
ever meets them, however many they are. Whoever ends the head lets the next one go, in the same
transaction.
"""

from collections.abc import Iterable
from hashlib import blake2b

from relay.store.sqlite import keys
from relay.store.sqlite.driver import sqlite3

HELD_MS = 1 << 60
"""Later than any time."""

_TURN_BYTES = 8

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
"""Whatever ends a delivery: an attempt, an erasure, a replay that is taken back."""

HELD_BACK = f"""
iif(
    {{turn}} IS NOT NULL
        AND EXISTS (SELECT 1 FROM deliveries WHERE sink = {{sink}} AND turn = {{turn}}),
    {HELD_MS}, 0
)
"""
"""What is added to the time of a new delivery."""

_FORGET_KEY = """
DELETE FROM keys
WHERE name = 'turns' AND NOT EXISTS (SELECT 1 FROM deliveries WHERE turn IS NOT NULL)
"""
_HOLD = f"""
UPDATE deliveries SET turn = ?, due_at = due_at + {HELD_MS}
WHERE event = ? AND sink = ? AND status = 'pending' AND replay = ? AND turn IS NULL
"""
_LET_GO = f"""
UPDATE deliveries SET due_at = due_at - {HELD_MS}
WHERE sink = ?1 AND event = (SELECT min(event) FROM deliveries WHERE sink = ?1 AND turn = ?2)
    AND NOT EXISTS (
        SELECT 1 FROM deliveries WHERE sink = ?1 AND turn = ?2 AND due_at < {HELD_MS}
    )
"""


class OrderingKeys:
    """Makes turns of keys; the store's own secret is in them, because a key may be an address.

    Keys that share a turn by chance wait for one another, which does no harm.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of(cls, db: sqlite3.Connection) -> "OrderingKeys":
        """Those of a store; its secret is a new one wherever nothing waits that was given a turn.

        So what the file's unused parts may hold of old turns cannot be compared with anything.
        """
        db.execute(_FORGET_KEY)
        return cls(keys.key(db, "turns"))

    def live(self, sink: str, key: str) -> int:
        return self._turn("live", sink, key)

    def replayed(self, sink: str, key: str) -> int:
        """Live deliveries do not wait for replayed ones, nor the other way round."""
        return self._turn("replay", sink, key)

    def _turn(self, tier: str, sink: str, key: str) -> int:
        text = f"{tier}\0{sink}\0{key}".encode(errors="replace")
        digest = blake2b(text, digest_size=_TURN_BYTES, key=self._key).digest()
        return int.from_bytes(digest, "big") >> 1  # SQLite's numbers have a sign


def line_up(
    db: sqlite3.Connection, sink: str, replay: int, opened: Iterable[tuple[int, int]]
) -> None:
    """Put what a replay has just opened in order: events with the turns that they are to have."""
    opened = tuple(opened)
    db.executemany(_HOLD, [(turn, event, sink, replay) for event, turn in opened])
    db.executemany(_LET_GO, [(sink, turn) for turn in {turn for _, turn in opened}])
