"""Personal data in PostgreSQL: what other relays do beside an erasure, and what remains after it.

A transaction locks events before their deliveries, and both in their order.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import cache

from relay.store.audience.reads import COUNTED_TO, ROLLED_TO
from relay.store.erasures import ErasureLog, Remains
from relay.store.personal_data_places import PersonalDataPlace, PersonalDataSearch
from relay.store.personal_data_removal import DeliveryKey, PersonalDataRemoval
from relay.store.postgres.audience_tables import PostgresAudienceTables, wait_for
from relay.store.postgres.driver import Database, Row
from relay.store.postgres.shared import PostgresRepository
from relay.store.postgres.vacuum import ERASABLE
from relay.store.sql import Values

_BYTES = frozenset({"body", "headers"})
"""Columns that hold bytes; all others hold text."""

# A replay that opens deliveries of these events commits first, or finds no body any more.
_HOLD_EVENTS = """
SELECT 1 FROM relay.events WHERE seq = ANY(%b::bigint[]) ORDER BY seq FOR UPDATE
"""
# A settlement under way, which adds an attempt, commits first.
_HOLD_DELIVERIES = """
SELECT 1 FROM relay.deliveries
WHERE event = ANY(%b::bigint[]) AND status IN ('pending', 'dead') ORDER BY event, sink FOR UPDATE
"""
_SENT_ELSEWHERE = """
SELECT d.event, d.sink FROM relay.deliveries AS d JOIN relay.ownership AS o ON o.sink = d.sink
WHERE d.event = ANY(%b::bigint[])
    AND d.due_at <= extract(epoch FROM clock_timestamp()) * 1000 + 60000
    AND o.holder <> %s AND o.expires_at > clock_timestamp()
"""


class PostgresPersonalDataSearch(PostgresRepository, PersonalDataSearch):
    """Rows of other relays may be on their way."""

    async def _arrived(self, place: PersonalDataPlace) -> None:
        match place.name:
            case "events":
                await self._shared.events.last()
            case "views":
                # A count that began before the events lost their bodies has ended then.
                await self._background.transact(lambda db: wait_for(db, COUNTED_TO))

    def _candidates(self, db: Database, place: PersonalDataPlace, span: Values) -> Iterable[Row]:
        return db.execute(_candidates(place), span)


@cache
def _candidates(place: PersonalDataPlace) -> str:
    hints = " OR ".join(
        _hints_in_bytes(each) if each in _BYTES else _hints_in_text(each) for each in place.columns
    )
    key = "number" if place.key == "rowid" else place.key
    return f"""
SELECT {key}, {", ".join(place.columns)} FROM relay.{place.table}
WHERE {key} >= %(start)s AND {key} < %(end)s AND (%(mark)s::text IS NULL OR {hints})
"""


def _hints_in_bytes(column: str) -> str:
    # Turns bytes that are not ASCII into octal digits, so that any body is valid text.
    text = f"""lower(encode({column}, 'escape') COLLATE "C")"""
    escapes = (f"position(E'\\\\x{each}'::bytea IN {column}) > 0" for each in ("5c75", "00"))
    return " OR ".join((f"position(%(mark)s IN {text}) > 0", *escapes))


def _hints_in_text(column: str) -> str:
    return (
        f"""position(%(mark)s IN lower({column} COLLATE "C")) > 0"""
        f""" OR position(E'\\\\u' IN {column}) > 0"""
    )


class PostgresPersonalDataRemoval(PostgresRepository, PersonalDataRemoval):
    """Other relays settle deliveries, replay events and count the audience at the same time."""

    def _prepare(self, db: Database, events: Sequence[int]) -> None:
        for hold in (_HOLD_EVENTS, _HOLD_DELIVERIES):
            db.execute(hold, (list(events),))

    def _sent_elsewhere(self, db: Database, events: Sequence[int]) -> Collection[DeliveryKey]:
        # It is unknown which of its due deliveries another relay is sending.
        found = db.execute(_SENT_ELSEWHERE, (list(events), self._shared.member))
        return [(seq, sink) for seq, sink in found]

    def _audience(self, db: Database) -> PostgresAudienceTables:
        # Another relay may be adding to the same days.
        wait_for(db, ROLLED_TO)
        return PostgresAudienceTables(db)


class PostgresErasureLog(PostgresRepository, ErasureLog):
    """Their traces are old versions of rows, which only VACUUM removes."""

    wiped = "vacuumed"

    async def wipe(self) -> None:
        await self._shared.vacuum.run(*ERASABLE)

    def _remains(self, *, is_wiped: bool) -> Remains:
        return Remains(wiped=False, text=f"{_VACUUMED if is_wiped else _NOT_VACUUMED} {_KEPT}")


_VACUUMED = "VACUUM has run on the tables."
_NOT_VACUUMED = (
    "VACUUM has not run yet, because it takes longer or only the owner of the tables may: until "
    "then they hold the old row versions."
)
_KEPT = (
    "PostgreSQL overwrites freed space only when it is used again, and its WAL, standbys and "
    "backups hold the data for as long as they are kept."
)
