"""Conditions of selections that PostgreSQL has in its own way."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import ClassVar

from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED, Event
from relay.core.routing import Route
from relay.store.audience.counting import person_of
from relay.store.audience.reads import LAST_COUNTED
from relay.store.globs import regular_expression
from relay.store.keyed_digests import PersonDigests
from relay.store.postgres.driver import Database
from relay.store.postgres.text import storable
from relay.store.rows import EVENT, event_of, within_bytes
from relay.store.selection import LOWER, Conditions, Order, Selection
from relay.store.sql import Condition, FilteredSql, Sql

STEP_ROWS = 500
STEP_BYTES = 4 << 20
"""Events whose bodies are read at once."""

PREFIX = "id BETWEEN :id_prefix AND :id_prefix_end"
"""Whether an id begins with a text, for the index of ids."""
_OF_PERSON = """
(
    e.seq IN (SELECT event FROM main.audience WHERE person = :person)
    OR e.seq = ANY(CAST(:uncounted AS bigint[]))
)
"""
_VIDEO = """
coalesce(
    main.body_value(e.body, 'data', 'video', 'id'),
    CASE WHEN starts_with(e.kind, 'video.') THEN main.body_value(e.body, 'data', 'id') END
) = :video
"""
_EMAIL = """
:email IN (
    lower(main.body_value(e.body, 'data', 'email') COLLATE BINARY),
    lower(main.body_value(e.body, 'data', 'viewer', 'email') COLLATE BINARY)
)
"""
_UNCOUNTED = Sql(f"""
SELECT seq, kind, length(body) FROM main.events
WHERE seq > greatest(
        {LAST_COUNTED}, CAST(:after AS bigint)
    )
    AND seq <= :end AND kind IN ('{VIDEO_WATCHED}', '{LEAD_CAPTURED}') AND body IS NOT NULL
ORDER BY seq LIMIT :limit
""")
_LAST = Sql("SELECT coalesce(max(seq), 0) FROM main.events")
_BODIES = Sql("SELECT seq, kind, body FROM main.events WHERE seq = ANY(CAST(:seqs AS bigint[]))")
# The place behind which the next step begins is a condition of its own, for the index.
_MISSED = """
SELECT e.seq, length(e.body), missing.sinks FROM main.events AS e, LATERAL (
    SELECT array_agg(s.name) AS sinks FROM unnest(CAST(:sinks AS text[])) AS s (name)
    WHERE NOT EXISTS (
        SELECT 1 FROM main.deliveries AS d
        WHERE d.event = e.seq AND d.sink = s.name AND d.status IN ('delivered', 'pending')
    )
) AS missing
WHERE e.body IS NOT NULL AND missing.sinks IS NOT NULL AND {{where}} AND e.seq {beyond} :place
ORDER BY e.seq {order} LIMIT :limit
"""
_MISSED_FROM: Mapping[Order, tuple[FilteredSql, int]] = {
    "ASC": (FilteredSql(_MISSED.format(beyond=">", order="ASC")), 0),
    "DESC": (FilteredSql(_MISSED.format(beyond="<", order="DESC")), (1 << 63) - 1),
}
_EVENTS = Sql(f"""
SELECT e.seq, {EVENT} FROM main.events AS e
WHERE e.seq = ANY(CAST(:seqs AS bigint[])) AND e.body IS NOT NULL
""")


class PostgresConditions(Conditions):
    """Some need a read before: people who are not counted yet, and what a route decides."""

    escapes = r"position(CAST(E'\\x5c' AS bytea) IN e.body) > 0"
    parsed: ClassVar = {"video": _VIDEO, "email": _EMAIL}

    def __init__(self, digests: PersonDigests) -> None:
        self._digests = digests

    def contains(self, name: str, text: str) -> Condition:
        sql = f"instr(lower(main.body_text(e.body) COLLATE BINARY), :{name}) > 0"
        return Condition(sql, {name: text.translate(LOWER)})

    def own(self, db: Database, selection: Selection) -> Iterator[Condition]:
        yield Condition("e.id = :id", {"id": selection.id})
        if selection.id_prefix is not None:
            yield Condition(f"e.{PREFIX}", prefix_values(selection.id_prefix))
        if selection.kind is not None:
            kind = regular_expression(storable(selection.kind))
            yield Condition("e.kind ~ :kind", {"kind": kind})
        if (person := selection.person_number) is not None:
            values = {"person": person, "uncounted": self.uncounted(db, person)}
            yield Condition(_OF_PERSON, values)

    def missed(
        self,
        db: Database,
        routes: Mapping[str, Route],
        fits: Condition,
        order: Order,
        limit: int | None,
    ) -> Condition:
        seqs = [*islice(_missed(db, routes, fits, order), limit)]
        return Condition("e.seq = ANY(CAST(:missed AS bigint[]))", {"missed": seqs})

    def uncounted(self, db: Database, person: int) -> list[int]:
        """Return the events of a person that the audience has not counted yet."""
        seqs: list[int] = []
        ((end,),) = db.execute(_LAST).fetchall()
        values = {"after": 0, "end": end, "limit": 1000}
        while rows := db.execute(_UNCOUNTED, values).fetchall():
            step = [row[0] for row in within_bytes(rows, STEP_BYTES, lambda row: int(row[2]))]
            for seq, kind, body in db.execute(_BODIES, {"seqs": step}):
                if person_of(kind, body, self._digests) == person:
                    seqs.append(seq)
            values["after"] = step[-1]
        return seqs


def prefix_values(prefix: str) -> dict[str, str]:
    """Return the values of `PREFIX`: the first and the last text, in the order of bytes."""
    first = storable(prefix)
    return {"id_prefix": first, "id_prefix_end": first + "\U0010ffff"}


def _missed(
    db: Database, routes: Mapping[str, Route], fits: Condition, order: Order
) -> Iterator[int]:
    statement, place = _MISSED_FROM[order]
    sql = statement.where(fits)
    values = {**fits.values, "sinks": [*routes], "place": place, "limit": STEP_ROWS}
    while rows := db.execute(sql, values).fetchall():
        step = list(within_bytes(rows, STEP_BYTES, lambda row: int(row[1])))
        events = _events(db, [row[0] for row in step])
        for seq, _, sinks in step:
            # Retention may have removed it since.
            event = events.get(seq)
            if event is not None and any(_takes(routes[sink], event) for sink in sinks):
                yield seq
        values["place"] = step[-1][0]


def _events(db: Database, seqs: list[int]) -> dict[int, Event]:
    rows = db.execute(_EVENTS, {"seqs": seqs}).fetchall()
    return {seq: event_of(event) for seq, *event in rows}


def _takes(route: Route, event: Event) -> bool:
    return route.evaluate(event).outcome == "takes"
