"""Erasures of personal data on record; the address is in a report only until its erasure ends."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from relay.core.errors import StoreUnavailable
from relay.store.repository import Repository, row, rows
from relay.store.rows import Row
from relay.store.sql import Database, FilteredSql, Sql, Values


class SentEvents(msgspec.Struct, frozen=True):
    """Events of one kind sent to one sink; `last_ms` is the end of the last such attempt."""

    sink: str
    kind: str
    count: int
    last_ms: int


class UnderWay(msgspec.Struct, frozen=True):
    """A delivery in flight when its event was erased."""

    sink: str
    source: str
    id: str


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """Result or forecast of an erasure; the numbers are rows."""

    events: int
    """Events whose body and headers are removed; their ids stay."""
    pending: int
    """Pending deliveries of these events that are discarded."""
    dead: int
    """Dead letters of these events that are discarded."""
    unreadable: int
    quarantine: int
    """Unverified requests that wait for a new secret."""
    excerpts: int
    """Excerpts of destinations' answers to other events."""
    reasons: int
    """Failure reasons that contain the address, which they never should."""
    searches: int
    """Replays selected by the address; running ones are cancelled."""
    views: int = 0
    """Views and leads in the audience."""
    videos: int = 0
    """Titles and ids of videos that contain the address."""
    reports: int = 0
    """Reports of reconciliations whose names are removed."""
    kept_ids: int
    """Event ids that contain the address, and stay."""
    told: Sequence[SentEvents]
    """Deliveries that sinks have confirmed, which cannot be recalled."""
    unconfirmed: Sequence[SentEvents]
    """Attempts without a confirmation; the destination may have the event."""
    under_way: Sequence[UnderWay]
    """Deliveries that may still arrive."""
    wiped: bool
    """Whether unused parts of the store's files are overwritten; never in PostgreSQL."""
    remains: str = ""
    """What still holds the data after an erasure, in words for the operator; empty before it."""


class ErasureRecord(msgspec.Struct, frozen=True):
    """One recorded erasure."""

    id: int
    begun_ms: int
    ended_ms: int | None
    """None while it runs, and if an older relay was interrupted, so that it must be repeated."""
    person: str
    """Keyed digest of the address, in hex, which only shows whether two persons are the same."""
    erasure: Erasure | None
    """The result, or what is removed so far; None of one that must be repeated."""
    share: float | None
    """How much of the store is searched, 0 to 1; None of one that must be repeated."""


COUNTS = {
    "events": "bodies and headers; their ids are kept",
    "pending": "pending deliveries, discarded",
    "dead": "dead letters, discarded",
    "unreadable": "requests without an event",
    "quarantine": "requests kept during a secret rotation",
    "excerpts": "responses of destinations about other events",
    "reasons": "failure reasons with the address",
    "searches": "replays selected by the address",
    "views": "views and leads of the audience report",
    "videos": "titles and ids of videos with the address",
    "reports": "reports of reconciliations with the address; their numbers stay",
}
"""What an erasure removes, by the names of its numbers."""


class Order(msgspec.Struct, frozen=True):
    """Whom an erasure is about, and where it goes on."""

    email: str
    places: Sequence[str] = ()
    """Names of all places, in the order in which they are searched."""
    place: int = 0
    """Position among these of the place to be searched next."""
    start: int = 0
    """First key to be searched there."""
    share: float = 0.0
    """How much of the store is searched."""


class Unfinished(Erasure, frozen=True, kw_only=True):
    """The result so far of an erasure that has not ended."""

    order: Order


class Stored(NamedTuple):
    """An erasure as it is in the store."""

    number: int
    begun_ms: int
    report: str | None
    """JSON of `Unfinished` until it ends; None where an older relay was interrupted."""


class Remains(NamedTuple):
    """Traces of removed data."""

    wiped: bool
    """Whether unused parts of the store's files are overwritten."""
    text: str
    """What still holds it, in words for the operator."""


_IS_RUNNING = "ended_at IS NULL AND report IS NOT NULL"
_RUNNING = Sql(f"""
SELECT id FROM main.erasures WHERE person = :digest AND {_IS_RUNNING} ORDER BY id LIMIT 1
""")
_BEGIN = Sql("""
INSERT INTO main.erasures AS e (id, begun_at, person, report)
/*postgres OVERRIDING SYSTEM VALUE */
VALUES (:id, :now, :digest, :report)
ON CONFLICT (id) DO UPDATE SET begun_at = e.begun_at RETURNING id
""")
_UNFINISHED = Sql(f"""
SELECT id, begun_at, report FROM main.erasures WHERE {_IS_RUNNING} ORDER BY id LIMIT 1
""")
# The new report too: a transaction whose outcome is unknown is done again.
_NOTE = Sql("""
UPDATE main.erasures SET report = :report
WHERE id = :id AND report IN (:stored, :report) AND ended_at IS NULL
""")
_END = Sql("""
UPDATE main.erasures SET report = :report, ended_at = :now
WHERE id = :id AND report IN (:stored, :report)
""")
_RECORDS = """
SELECT id, begun_at, report, ended_at, person, CASE WHEN id <= coalesce(
    (SELECT value FROM main.state WHERE name = :wiped), 0
) THEN 1 ELSE 0 END
FROM main.erasures
"""
_ONE = Sql(f"{_RECORDS} WHERE id = :id")
_NEWEST = FilteredSql(
    f"{_RECORDS} WHERE {{where}} ORDER BY id DESC LIMIT :limit", {"digest": "person = :digest"}
)
_OF_PERSON = Sql("SELECT id FROM main.erasures WHERE person = :digest ORDER BY id LIMIT 1")

_GOES_ON = (
    "The erasure is under way: {share} % of the store is searched. The relay goes on by itself, "
    "also after a restart; erase the same address again to see how far it is."
)


class ErasureLog(Repository, ABC):
    """The log of erasures; all methods may raise StoreError."""

    wiped: ClassVar[str]
    """Name of the state that holds the last erasure whose traces are removed."""

    @abstractmethod
    async def wipe(self) -> None:
        """Remove the traces of removed data; after a while, it continues in the background."""

    @abstractmethod
    def _remains(self, *, is_wiped: bool) -> Remains:
        """Describe the traces that removed data leaves."""

    async def begin(self, person: bytes, report: str, *, now_ms: int) -> int:
        """Record the start of an erasure, by the person's digest, unless one runs.

        Return its number.
        """
        number = await self._connections.draw("erasures")
        values = {"id": number, "now": now_ms, "digest": person, "report": report}

        def work(db: Database) -> int:
            # The relay that does the maintenance carries it on.
            self._connections.announce(db)
            return begin(db, values)

        return await self._background.transact(work)

    async def unfinished(self) -> Stored | None:
        """Return the oldest erasure that can go on."""
        found = await row(self._reader, _UNFINISHED, {})
        return None if found is None else Stored(*found)

    async def note(self, number: int, *, before: str | None, report: str) -> None:
        """Change the report, and nothing else."""
        await self._background.transact(lambda db: note(db, number, before=before, report=report))

    async def one(self, number: int) -> ErasureRecord | None:
        found = await row(self._reader, _ONE, {"id": number, "wiped": self.wiped})
        return None if found is None else self._record(found)

    async def newest(self, *, limit: int, person: bytes | None) -> Sequence[ErasureRecord]:
        """Return the newest erasures, of one person's digest or of all."""
        values = {"limit": limit, "digest": person, "wiped": self.wiped}
        found = await rows(self._reader, _NEWEST.by(values), values)
        return [self._record(each) for each in found]

    def _record(self, columns: Row) -> ErasureRecord:
        """Make the record of an erasure, without the address."""
        number, begun_ms, report, ended_ms, person, is_wiped = columns
        if report is None:
            return ErasureRecord(number, begun_ms, ended_ms, person.hex(), None, None)
        share, remains = 1.0, self._remains(is_wiped=bool(is_wiped))
        if ended_ms is None:
            share = msgspec.json.decode(report, type=Unfinished).order.share
            remains = Remains(wiped=False, text=_GOES_ON.format(share=math.floor(100 * share)))
        erasure = msgspec.json.decode(report, type=Erasure)
        erasure = replace(erasure, wiped=remains.wiped, remains=remains.text)
        return ErasureRecord(number, begun_ms, ended_ms, person.hex(), erasure, share)


def begin(db: Database, values: Values) -> int:
    """Record the start of an erasure, unless one of the person runs; return its number."""
    found = db.execute(_RUNNING, values).fetchall() or db.execute(_BEGIN, values).fetchall()
    return int(found[0][0])


def note(db: Database, number: int, *, before: str | None, report: str) -> None:
    """Store how far an erasure is, in the transaction that removes something.

    If the stored report is another than the one before, another relay carries the erasure on:
    raises StoreUnavailable.
    """
    _change(db, _NOTE, {"id": number, "stored": before, "report": report})


def end(db: Database, number: int, *, before: str | None, report: str, now_ms: int) -> None:
    """Record the end and the result of an erasure; otherwise like `note`."""
    _change(db, _END, {"id": number, "stored": before, "report": report, "now": now_ms})


def _change(db: Database, sql: Sql, values: Values) -> None:
    if not db.execute(sql, values).rowcount:
        raise StoreUnavailable(f"another relay carries erasure {values['id']} on")


def is_erased(db: Database, person: bytes) -> bool:
    """Whether an erasure of a person's digest was begun at any time."""
    return db.execute(_OF_PERSON, {"digest": person}).fetchone() is not None


def unfinished(result: Erasure, order: Order) -> str:
    """Return the report of an erasure that has not ended."""
    return msgspec.json.encode(Unfinished(**asdict(result), order=order)).decode()
