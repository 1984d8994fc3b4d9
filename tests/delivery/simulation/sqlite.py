"""A relay's store on SQLite: the real store and SQL on a database in memory.

One connection stands for all, because each function that runs on it does so at one moment.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, cast

from relay.core.config_values import Size
from relay.core.delivery import Status
from relay.core.event import Event, Outcome
from relay.core.routing import Verdict
from relay.store import Offer, keyed_digests
from relay.store.ordering import OrderingKeys
from relay.store.sqlite import accept, id_periods, ordering, queries, schema, settle
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.filter_builder import FilterBuilder
from relay.store.sqlite.group_commit import GroupCommit
from relay.store.sqlite.known_ids import KnownIds
from relay.store.sqlite.outstanding import Outstanding
from relay.store.sqlite.secure_delete import Wiper
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.shared import Shared
from relay.store.sqlite.store import SqliteStore
from relay.store.sqlite.totals import totals
from tests.delivery.simulation.line import START_MS, BlockingConnection, Line

if TYPE_CHECKING:
    from relay.store.sqlite.disk import Room
    from relay.store.sqlite.files import Files

_DUE = """
SELECT e.id FROM deliveries AS d JOIN events AS e ON e.seq = d.event
WHERE d.sink = ? AND d.status = 'pending' AND d.due_at <= ? ORDER BY d.due_at, d.event
"""
_PENDING = "SELECT count(*) FROM deliveries WHERE sink = ? AND status = 'pending'"
_DEAD = """
SELECT e.id, d.replay IS NOT NULL FROM deliveries AS d JOIN events AS e ON e.seq = d.event
WHERE d.sink = ? AND d.status = 'dead'
"""
_NUMBER = "SELECT seq FROM events WHERE id = ? ORDER BY seq DESC LIMIT 1"
_IS_PENDING = "SELECT status = 'pending' FROM deliveries WHERE event = ? AND sink = ?"
_PATH = Path("simulated.db")


class SqliteEngine:
    """The file, in memory, of the one relay that runs at a time."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        _migrated().backup(self._db)
        self._db.executescript(accept.TRIGGER + settle.TRIGGER + ordering.TRIGGER)
        self._seqs: dict[str, int] = {}

    def store(self, line: Line, *, number: int, lost: object) -> SqliteStore:
        clock, db = line.clock, self._db

        def connected(count: Callable[[], None]) -> sqlite3.Connection:
            count()
            return db

        def connection() -> Connection:
            return cast("Connection", BlockingConnection(line, connected))

        ids = KnownIds.of_store(db, id_periods.of(accept.last_number(db) + 1))
        ids.recall(db)
        turns = OrderingKeys(b"simulated")
        digests, tokens = keyed_digests.digests(db)
        leaser, reader = connection(), connection()
        files = cast("Files", Intact())
        room = cast("Room", Intact())
        writer = GroupCommit(
            connection(),
            clock=clock,
            committed=lambda _: ids.recent.commit(),
            files=files,
            rolled_back=ids.recent.roll_back,
        )
        shared = Shared(
            leaser=leaser,
            reader=reader,
            searcher=reader,
            pager=reader,
            writer=writer,
            wiper=Wiper(_PATH, writer, reader, clock=clock),
            room=room,
            turns=turns,
            digests=digests,
            tokens=tokens,
            outstanding=Outstanding.of_store(db),
            tallies=defaultdict(lambda: dict.fromkeys(Status, 0), queries.tallies(db)),
        )
        return SqliteStore(
            SqliteSettings(path=str(_PATH), min_free=Size.parse("1B")),
            shared,
            clock=clock,
            held=BytesIO(),
            files=files,
            accept=accept.Acceptance(turns, ids, accept.last_number(db)),
            filters=FilterBuilder(ids, writer, reader, room),
            totals=totals(db),
            counted=lambda _: None,
            unclean=False,
        )

    async def accept(
        self,
        store: SqliteStore,
        event: Event,
        verdicts: Sequence[Verdict],
        offer: Offer,
        stored: Callable[[], None],
        *,
        commit_s: float,
    ) -> None:
        """Store an event; all commits are in the order of the numbers."""

        def noted(_: Outcome) -> None:
            stored()

        await store.accept(event, verdicts, noted, offer)

    async def synchronize(self, store: SqliteStore) -> int:
        """Do nothing: the machine's clock is the store's."""
        return 0

    def own(self, sink: str, store: object) -> None:
        """One relay owns all sinks."""

    def due(self, sink: str, now_ms: int) -> Iterator[str]:
        """Yield the events that are due to a sink with none of their key before them."""
        return (event for (event,) in self._db.execute(_DUE, (sink, now_ms)))

    def is_pending(self, sink: str, event: str) -> bool:
        if event not in self._seqs:
            self._seqs[event] = self._db.execute(_NUMBER, (event,)).fetchone()[0]
        return bool(self._db.execute(_IS_PENDING, (self._seqs[event], sink)).fetchone()[0])

    def dead(self, sink: str) -> Iterator[tuple[str, bool]]:
        """Yield the dead letters of a sink, and whether a replay had opened them."""
        return (
            (event, bool(is_replayed)) for event, is_replayed in self._db.execute(_DEAD, (sink,))
        )

    def pending(self, sink: str) -> int:
        return int(self._db.execute(_PENDING, (sink,)).fetchone()[0])


class Intact:
    """Stands for checks of the files and of their disk, which is in memory here."""

    def require(self, db: object = None) -> None:
        pass

    def require_all(self, db: object) -> None:
        pass

    def has_commit(self) -> bool:
        return False

    def log_is_long(self) -> bool:
        return False

    def shortage(self) -> None:
        return None


@cache
def _migrated() -> sqlite3.Connection:
    """An empty store, made once for each process."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    schema.migrate(db, now_ms=START_MS)
    return db
