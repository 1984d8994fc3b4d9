"""The statements of `relay.core.cluster` in SQL: each one transaction of one round trip."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from relay.core.clock import ClockSample, boottime_ns
from relay.core.cluster.statements import (
    Acquire,
    Acquired,
    Answer,
    Beat,
    Fence,
    Leave,
    OwnershipRow,
    Release,
    Released,
    Renewed,
    Statement,
    Survey,
    Surveyed,
)
from relay.core.cluster.timing import LEASE_S, TAKEOVER_S
from relay.store.migrations import Schema
from relay.store.ownership import MAINTENANCE, Cluster, FreeSink, Introduction, Member
from relay.store.postgres.driver import Database
from relay.store.postgres.fences import HISTORY
from relay.store.postgres.orders import NUMBERS, OPENINGS, Orders
from relay.store.postgres.schema import FOUND

_NOW_US = "floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_LEASE = f"make_interval(secs => {LEASE_S})"
_START = "floor(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text"
_LATE = f"clock_timestamp() - make_interval(secs => {TAKEOVER_S})"
_FORGOTTEN = "interval '1 hour'"
"""Time after which a member that ended without leaving is no longer listed."""
_FORGOTTEN_OWNER = "interval '1 day'"
"""The same if no other member could take over a sink that it owned."""

# A beat reaches rows that a settlement of this member may hold, but only those.
_BEAT = f"""
WITH me AS (
    INSERT INTO relay.members (id, name, version, revision, address, config, sinks, since, beat_at)
    VALUES (
        %(member)s, %(name)s, %(version)s, %(revision)s, %(address)s, %(config)s,
        %(sinks)b::text[], clock_timestamp(), clock_timestamp()
    )
    ON CONFLICT (id) DO UPDATE SET address = excluded.address, config = excluded.config,
        sinks = excluded.sinks, beat_at = clock_timestamp()
),
forgotten AS (
    DELETE FROM relay.members AS m WHERE beat_at < clock_timestamp() - {_FORGOTTEN} AND (
        beat_at < clock_timestamp() - {_FORGOTTEN_OWNER}
        OR NOT EXISTS (SELECT 1 FROM relay.ownership AS o WHERE o.holder = m.id)
    )
),
run AS (
    INSERT INTO relay.server_runs VALUES ({HISTORY}, {_START}, clock_timestamp())
    ON CONFLICT DO NOTHING
),
added AS (
    INSERT INTO relay.ownership (sink) SELECT unnest(%(sinks)b::text[])
    ON CONFLICT DO NOTHING
),
renewed AS MATERIALIZED (
    SELECT o.sink, held.status FROM relay.ownership AS o
    JOIN unnest(
        %(held)b::text[], %(histories)b::text[], %(fences)b::bigint[], %(statuses)b::text[]
    ) AS held (sink, history, fence, status) ON o.sink = held.sink AND o.fence = held.fence
    WHERE o.holder = %(member)s AND held.history = {HISTORY} AND o.expires_at > clock_timestamp()
    ORDER BY o.sink FOR NO KEY UPDATE OF o
)
UPDATE relay.ownership AS o
SET expires_at = clock_timestamp() + {_LEASE}, version = version + 1, status = renewed.status
FROM renewed WHERE o.sink = renewed.sink
RETURNING o.sink, o.fence, {HISTORY}
"""
# The sum grows with each commit of an event, also of a lower number than the last one, unless
# hundreds were accepted after it: walks over due deliveries find that one. `added_totals` would
# show each commit, but a poll would pass over all that was summed up since the last vacuum.
_NEWS = f"""
(
    SELECT sum(seq) FROM (SELECT seq FROM relay.events ORDER BY seq DESC LIMIT 500) AS newest
), ({OPENINGS})
"""
_SURVEY = f"""
SELECT {HISTORY}, {_START},
    coalesce((
        SELECT first_beat_at > clock_timestamp() - {_LEASE} FROM relay.server_runs
        WHERE history = {HISTORY} AND start = {_START}
    ), true),
    (
        SELECT coalesce(json_object_agg(id, sinks), '{{}}') FROM relay.members
        WHERE beat_at > clock_timestamp() - {_LEASE} AND beat_at <= clock_timestamp() + {_LEASE}
    ),
    (
        SELECT coalesce(json_agg(json_build_array(
            sink, holder, version,
            expires_at <= clock_timestamp() OR expires_at > clock_timestamp() + {_LEASE},
            status
        )), '[]') FROM relay.ownership
    ),
    ({NUMBERS}),
    ({FOUND}),
    {_NOW_US},
    {_NEWS}
"""
_ACQUIRE = f"""
WITH free AS (
    SELECT o.sink FROM relay.ownership AS o
    JOIN unnest(%(sinks)b::text[], %(versions)b::bigint[]) AS w (sink, version)
        ON o.sink = w.sink AND o.version = w.version
    WHERE {HISTORY} = %(history)s AND {_START} = %(start)s AND (
        o.holder IS NULL OR o.holder = %(member)s
        OR o.expires_at <= clock_timestamp() OR o.expires_at > clock_timestamp() + {_LEASE}
    )
    ORDER BY o.sink FOR NO KEY UPDATE OF o SKIP LOCKED
)
UPDATE relay.ownership AS o
SET holder = %(member)s, fence = fence + 1, version = version + 1,
    expires_at = clock_timestamp() + {_LEASE}, status = NULL
FROM free WHERE o.sink = free.sink
RETURNING o.sink, o.fence
"""
_FREE = """
SET holder = NULL, version = version + 1, expires_at = '-infinity', status = NULL,
    freed_at = clock_timestamp()
"""
_RELEASE = f"""
UPDATE relay.ownership {_FREE}
WHERE sink = %s AND holder = %s AND fence = %s AND {HISTORY} = %s
"""
_LEAVE = f"""
WITH gone AS (DELETE FROM relay.members WHERE id = %(member)s)
UPDATE relay.ownership {_FREE} WHERE holder = %(member)s
"""
# A relay that was killed and has started again is one member.
_CLUSTER = f"""
SELECT (
    SELECT coalesce(json_agg(json_build_array(
        m.name, m.version, m.revision, m.address, m.config, m.id, m.beat_at < {_LATE},
        floor(extract(epoch FROM m.since) * 1000)::bigint,
        floor(extract(epoch FROM m.beat_at) * 1000)::bigint,
        array(
            SELECT o.sink FROM relay.ownership AS o
            WHERE o.holder = m.id AND o.expires_at > clock_timestamp()
                AND o.sink <> '{MAINTENANCE}'
            ORDER BY o.sink
        )
    ) ORDER BY m.name, m.since), '[]')
    FROM relay.members AS m
    WHERE NOT EXISTS (
        SELECT 1 FROM relay.members AS n
        WHERE n.name = m.name AND n.address = m.address AND n.since > m.since
    )
), (
    SELECT coalesce(json_agg(json_build_array(
        sink, floor(extract(epoch FROM since) * 1000)::bigint
    ) ORDER BY sink), '[]')
    FROM (
        SELECT sink, CASE WHEN holder IS NULL THEN freed_at ELSE expires_at END AS since
        FROM relay.ownership
    ) AS o
    WHERE since < {_LATE} AND sink <> '{MAINTENANCE}'
        AND sink IN (SELECT unnest(sinks) FROM relay.members WHERE beat_at >= {_LATE})
)
"""

News = tuple[Any, ...]
"""Changes with each commit that may have brought deliveries."""


class Seen(NamedTuple):
    """An answer, and what a survey tells besides."""

    answer: Answer
    statuses: Mapping[str, str] | None = None
    """How the sinks are, by what their holders said last."""
    orders: Orders | None = None
    news: News | None = None
    schema: Schema | None = None
    sample: ClockSample | None = None


def run(db: Database, statement: Statement, me: Introduction, statuses: Mapping[str, str]) -> Seen:
    """Run one statement; `statuses` are told with a beat. Raises psycopg.Error."""
    match statement:
        case Beat():
            return Seen(_beat(db, statement, me, statuses))
        case Survey():
            return _survey(db)
        case Acquire():
            return Seen(_acquire(db, statement))
        case Release(member=member, sink=sink, fence=fence):
            db.execute(_RELEASE, (sink, member, fence.number, fence.history))
        case Leave(member=member):
            db.execute(_LEAVE, {"member": member})
        case _:
            raise TypeError(f"{type(statement).__name__} is not for the database")
    return Seen(Released())


def sample(db: Database) -> ClockSample:
    """Read the database's clock."""
    before_ns = boottime_ns()
    ((now_us,),) = db.execute(f"SELECT {_NOW_US}").fetchall()
    return ClockSample(before_ns, now_us * 1000, boottime_ns())


def news(db: Database) -> News:
    """Return what another call returns unchanged as long as there is nothing new."""
    return db.execute(f"SELECT {_NEWS}").fetchall()[0]


def cluster(db: Database, own: UUID) -> Cluster:
    """Return the members, those included that ended without leaving."""
    ((rows, free),) = db.execute(_CLUSTER).fetchall()
    members = tuple(
        Member(
            name=name,
            version=version,
            revision=revision,
            address=address,
            config=config,
            since_ms=since_ms,
            beat_ms=beat_ms,
            sinks=tuple(sinks),
            is_away=is_away,
            is_self=number == str(own),
        )
        for (
            name,
            version,
            revision,
            address,
            config,
            number,
            is_away,
            since_ms,
            beat_ms,
            sinks,
        ) in rows
    )
    return Cluster(
        members=members,
        free=tuple(FreeSink(name=name, since_ms=since_ms) for name, since_ms in free),
    )


def _beat(db: Database, beat: Beat, me: Introduction, statuses: Mapping[str, str]) -> Renewed:
    values = {
        "member": beat.member,
        "name": me.name,
        "version": me.version,
        "revision": me.revision,
        "address": me.address,
        "config": me.config,
        "sinks": list(beat.sinks),
        "held": [sink for sink, _ in beat.leases],
        "histories": [fence.history for _, fence in beat.leases],
        "fences": [fence.number for _, fence in beat.leases],
        "statuses": [statuses.get(sink) for sink, _ in beat.leases],
    }
    renewed = {
        (sink, Fence(history, number)) for sink, number, history in db.execute(_BEAT, values)
    }
    return Renewed(frozenset(renewed))


def _survey(db: Database) -> Seen:
    before_ns = boottime_ns()
    survey = db.execute(_SURVEY).fetchall()[0]
    after_ns = boottime_ns()
    history, start, fresh, live, rows, orders, found, now_us, *news = survey
    surveyed = Surveyed(
        history=history,
        start=start,
        fresh=fresh,
        members={member: frozenset(sinks) for member, sinks in live.items()},
        rows=tuple(
            OwnershipRow(sink=sink, holder=holder, version=version, expired=expired)
            for sink, holder, version, expired, _ in rows
        ),
    )
    statuses = {sink: status for sink, *_, status in rows if status is not None}
    # A failover may have lost an order, and the next one then gets its number.
    orders = {**orders, history: 0}
    sample = ClockSample(before_ns, now_us * 1000, after_ns)
    return Seen(surveyed, statuses, orders, tuple(news), Schema(*found), sample)


def _acquire(db: Database, acquire: Acquire) -> Acquired:
    values = {
        "member": acquire.member,
        "history": acquire.history,
        "start": acquire.start,
        "sinks": [sink for sink, _ in acquire.rows],
        "versions": [version for _, version in acquire.rows],
    }
    rows = db.execute(_ACQUIRE, values)
    return Acquired(tuple((sink, Fence(acquire.history, number)) for sink, number in rows))
