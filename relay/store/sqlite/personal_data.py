"""Personal data in SQLite: its search without Python's lock, and what remains after an erasure."""

from collections.abc import Collection, Iterable, Sequence
from functools import cache

import orjson

from relay.store.erasures import ErasureLog, Remains
from relay.store.personal_data_places import KEYS, PersonalDataPlace, PersonalDataSearch
from relay.store.personal_data_removal import DeliveryKey, PersonalDataRemoval
from relay.store.rows import Row
from relay.store.sql import Values
from relay.store.sqlite.audience_tables import SqliteAudienceTables
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.id_periods import BLOCK_BITS
from relay.store.sqlite.shared import SqliteRepository

# A filter would still tell whether an id was there; the next start makes it anew.
_FORGET_FILTERS = f"""
DELETE FROM id_filters WHERE block IN (
    SELECT seq >> {BLOCK_BITS} FROM events WHERE seq IN {KEYS} AND reconstructed > 0
)
"""


class SqlitePersonalDataSearch(SqliteRepository, PersonalDataSearch):
    """SQLite searches without Python's lock, and rules most rows out."""

    async def _arrived(self, _: PersonalDataPlace) -> None:
        """All that is committed can be seen."""

    def _candidates(
        self, db: sqlite3.Connection, place: PersonalDataPlace, span: Values
    ) -> Iterable[Row]:
        return db.execute(_candidates(place), span)


@cache
def _candidates(place: PersonalDataPlace) -> str:
    hints = " OR ".join(
        f"instr(lower(CAST({each} AS TEXT)), :mark) > 0"
        f" OR instr(CAST({each} AS BLOB), x'5c75') > 0 OR instr(CAST({each} AS BLOB), x'00') > 0"
        for each in place.columns
    )
    return f"""
SELECT {place.key}, {", ".join(place.columns)} FROM {place.table}
WHERE {place.key} >= :start AND {place.key} < :end AND (:mark IS NULL OR {hints})
"""


class SqlitePersonalDataRemoval(SqliteRepository, PersonalDataRemoval):
    """One process holds the store, so nothing is locked."""

    def _prepare(self, db: sqlite3.Connection, events: Sequence[int]) -> None:
        db.execute(_FORGET_FILTERS, {"keys": orjson.dumps(events).decode()})

    def _sent_elsewhere(self, _: object, __: Sequence[int]) -> Collection[DeliveryKey]:
        return ()

    def _audience(self, db: sqlite3.Connection) -> SqliteAudienceTables:
        return SqliteAudienceTables(db)


class SqliteErasureLog(SqliteRepository, ErasureLog):
    """Their traces are in unused parts of the store's files."""

    wiped = "wiped"

    async def wipe(self) -> None:
        await self._shared.wiper.wipe()

    def _remains(self, *, is_wiped: bool) -> Remains:
        return Remains(is_wiped, _WIPED if is_wiped else _NOT_WIPED)


_WIPED = "The store's files are overwritten and its log is empty; backups still hold the data."
_NOT_WIPED = (
    "The store's files are still being overwritten, or a reader holds its log; the relay "
    "finishes this in the background. Backups still hold the data."
)
