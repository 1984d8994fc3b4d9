"""Places of personal data in the tables: how they are searched, and how rows are removed.

`PLACES` is complete: it lists every column with text of a sender or a destination.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

from relay.store.email_matcher import EmailMatcher
from relay.store.reconstructions import NAMED
from relay.store.repository import Repository, row
from relay.store.rows import Row
from relay.store.sql import Database, Sql, Values

SCAN_ROWS = 500
"""Rows scanned in the first step of a place, because other queries wait for the same reader."""

KEYS = "(SELECT CAST(value AS bigint) FROM json_each(:keys) AS x)"


class PersonalDataPlace(NamedTuple):
    """Rows of one table, counted under `name` if one of their `columns` contains the address."""

    name: str
    table: str
    key: str
    columns: tuple[str, ...] = ()
    """None where the rows have the person's number instead."""
    removal: tuple[Sql, ...] = ()
    """Statements with `:keys`, `:now` and `:stand_in`; none if the rows stay."""
    weight: int = 1
    """Number of usual rows whose removal takes as long as that of one of these."""

    @property
    def is_kept(self) -> bool:
        return not self.removal


EVENTS = PersonalDataPlace(
    "events",
    table="events",
    key="seq",
    columns=("body", "headers", "created_at"),
    removal=(
        # In SQLite a trigger takes the turns.
        Sql(f"""
        UPDATE main.deliveries SET status = 'discarded', settled_at = :now, reason = 'erased'
            /*postgres , turn = NULL */
        WHERE event IN {KEYS} AND status IN ('pending', 'dead')
        """),
        Sql(f"UPDATE main.attempts SET answer = '' WHERE event IN {KEYS}"),
        Sql(f"""
        UPDATE main.events SET body = NULL, headers = NULL, created_at = NULL WHERE seq IN {KEYS}
        """),
        # The id of a reconstruction is a digest of facts, one of which is the address.
        Sql(f"""
        UPDATE main.events SET id = CAST(:stand_in AS text) || seq
        WHERE seq IN {KEYS} AND reconstructed > 0
        """),
    ),
)
VIEWS = PersonalDataPlace(
    "views",
    table="audience",
    key="event",
    removal=(Sql(f"DELETE FROM main.audience WHERE event IN {KEYS}"),),
    # The sets of its day are written anew.
    weight=10,
)
PLACES = (
    # In the order in which requests move on: one that does so during an erasure is found later.
    PersonalDataPlace(
        "quarantine",
        table="quarantine",
        key="number",
        columns=("body", "headers"),
        removal=(Sql(f"DELETE FROM main.quarantine WHERE number IN {KEYS}"),),
    ),
    PersonalDataPlace(
        "unreadable",
        table="unreadable",
        key="rowid",
        columns=("body", "headers"),
        removal=(
            Sql(f"UPDATE main.unreadable SET body = NULL, headers = NULL WHERE rowid IN {KEYS}"),
        ),
    ),
    EVENTS,
    PersonalDataPlace(
        "excerpts",
        table="attempts",
        key="rowid",
        columns=("answer",),
        removal=(Sql(f"UPDATE main.attempts SET answer = '' WHERE rowid IN {KEYS}"),),
    ),
    PersonalDataPlace(
        "reasons",
        table="attempts",
        key="rowid",
        columns=("reason",),
        removal=(Sql(f"UPDATE main.attempts SET reason = 'erased' WHERE rowid IN {KEYS}"),),
    ),
    PersonalDataPlace(
        "reasons",
        table="deliveries",
        key="event",
        columns=("reason",),
        removal=(
            Sql(f"""
            UPDATE main.deliveries SET reason = 'erased' WHERE event IN {KEYS} AND reason > ''
            """),
        ),
    ),
    PersonalDataPlace(
        "searches",
        table="replays",
        key="id",
        columns=("selection",),
        # Not removed but replaced, so that the selection does not become everything.
        removal=(
            Sql(f"""
            UPDATE main.replays SET selection = '{{"email":"(erased)"}}',
                state = CASE WHEN state = 'running' THEN 'cancelled' ELSE state END,
                ended_at = coalesce(ended_at, :now)
            WHERE id IN {KEYS}
            """),
        ),
    ),
    PersonalDataPlace(
        "videos",
        table="videos",
        key="number",
        columns=("title",),
        removal=(Sql(f"UPDATE main.videos SET title = NULL WHERE number IN {KEYS}"),),
    ),
    PersonalDataPlace(
        "videos",
        table="videos",
        key="number",
        columns=("id",),
        removal=(
            Sql(f"""
            UPDATE main.videos SET id = CAST(:stand_in AS text) || number WHERE number IN {KEYS}
            """),
        ),
    ),
    # Needed to recognise duplicates.
    PersonalDataPlace("kept_ids", table="events", key="seq", columns=("id", "kind")),
    PersonalDataPlace(
        "reports",
        table="reconciliations",
        key="id",
        columns=("report",),
        removal=(
            Sql(f"""
            UPDATE main.reconciliations SET report = json_remove(report, '$.{NAMED}')
            WHERE id IN {KEYS}
            """),
        ),
    ),
    # The last one: then the person's number goes too.
    VIEWS,
)

_LAST = {
    each.table: Sql(f"SELECT coalesce(max({each.key}), -1) FROM main.{each.table}")
    for each in PLACES
}
_FIRST = {
    each.table: Sql(f"SELECT min({each.key}) FROM main.{each.table} WHERE {each.key} >= :start")
    for each in PLACES
}
_OF_PERSON = Sql("""
SELECT event, 0 FROM main.audience
WHERE event >= :start AND event < :end AND person = :number ORDER BY event
""")


class Matches(NamedTuple):
    """Keys of rows in their order, with sizes; `next` is the next key to search, None at the end.

    An erasure that stopped goes on behind the last row that it removed.
    """

    rows: list[tuple[int, int]]
    next: int | None

    @property
    def keys(self) -> list[int]:
        return [key for key, _ in self.rows]


class PersonalDataSearch(Repository, ABC):
    """Searches place by place, in steps; all methods may raise StoreError."""

    @abstractmethod
    async def _arrived(self, place: PersonalDataPlace) -> None:
        """Return once the rows that are on their way to a place can be seen."""

    @abstractmethod
    def _candidates(self, db: Any, place: PersonalDataPlace, span: Values) -> Iterable[Row]:
        """Return the keys and contents of the rows that may contain the address.

        These are rows from `start` on, before `end`, with `mark`, the longest word of the address,
        or with escapes that may hide it. `db` is a connection of the engine's own.
        """

    async def last(self, place: PersonalDataPlace) -> int:
        """Return the greatest key of a place, -1 if there is none.

        The rows up to it are those that were stored or on their way there when it was called.
        """
        await self._arrived(place)
        (last,) = await row(self._reader, _LAST[place.table], {}) or (-1,)
        return int(last)

    async def find(
        self, place: PersonalDataPlace, address: EmailMatcher, *, start: int, rows: int
    ) -> Matches:
        """Search the next rows of a place, from a key on."""
        return await self._reader.read(lambda db: self._find(db, place, address, start, rows))

    def _find(
        self, db: Database, place: PersonalDataPlace, address: EmailMatcher, start: int, rows: int
    ) -> Matches:
        (first,) = db.execute(_FIRST[place.table], {"start": start}).fetchone() or (None,)
        if first is None:
            return Matches([], None)
        span = {"start": first, "end": first + rows}
        if not place.columns:
            of_person = db.execute(_OF_PERSON, span | {"number": address.number})
            return Matches([(key, size) for key, size in of_person], span["end"])
        candidates = self._candidates(db, place, span | {"mark": address.longest_word})
        # Two rows of one key are removed together.
        sizes = {
            key: sum(len(each or "") for each in contents)
            for key, *contents in candidates
            if any(address.stands_in(each) for each in contents)
        }
        # PostgreSQL may return them in the order of their places in the table.
        return Matches(sorted(sizes.items()), span["end"])
