"""What a store file says, read by nobody but the test: the relay has no say in it."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from relay.store.sqlite.driver import sqlite3
from tests.guarantees.destinations import Key

Place = tuple[str, Key]
"""A delivery: the sink's name and the event's identity."""

_DELIVERIES = """
SELECT d.sink, e.source, e.id, d.status FROM deliveries d JOIN events e ON e.seq = d.event
"""
_UNANSWERED = """
SELECT a.sink, e.source, e.id, count(*) FROM attempts a JOIN events e ON e.seq = a.event
WHERE a.status IS NULL GROUP BY 1, 2, 3
"""


@dataclass(frozen=True)
class Ledger:
    """All deliveries by status, and the attempts in which the relay has seen no answer."""

    events: frozenset[Key]
    deliveries: dict[Place, str]
    unanswered: Counter[Place]
    integrity: str

    def places(self, status: str) -> set[Place]:
        return {place for place, known in self.deliveries.items() if known == status}


def read(path: Path) -> Ledger:
    """Read the store of a relay that has ended, however it did; a copy, so nothing is healed."""
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("", "-wal"):
            if path.with_name(path.name + suffix).exists():
                shutil.copy(path.with_name(path.name + suffix), folder)
        with _opened(Path(folder) / path.name, mode="rw") as db:
            return _ledger(db)


def pending(path: Path) -> int:
    """How many deliveries wait in the store of a relay that may be running."""
    with _opened(path, mode="ro") as db:
        count: int = db.execute(
            "SELECT count(*) FROM deliveries WHERE status = 'pending'"
        ).fetchone()[0]
        return count


def _ledger(db: sqlite3.Connection) -> Ledger:
    return Ledger(
        events=frozenset(db.execute("SELECT source, id FROM events").fetchall()),
        deliveries={
            (sink, (source, event_id)): status
            for sink, source, event_id, status in db.execute(_DELIVERIES)
        },
        unanswered=Counter(
            {
                (sink, (source, event_id)): count
                for sink, source, event_id, count in db.execute(_UNANSWERED)
            }
        ),
        integrity=db.execute("PRAGMA integrity_check").fetchone()[0],
    )


@contextmanager
def _opened(path: Path, *, mode: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"file:{path}?mode={mode}", uri=True, timeout=10)) as db:
        yield db
