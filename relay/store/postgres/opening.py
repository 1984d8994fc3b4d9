"""Opening of a store on PostgreSQL: connected, migrated, and with what it keeps in memory read."""

from collections.abc import Callable
from functools import partial

from relay.core.clock import Clock, ClockSample
from relay.core.totals import Total
from relay.store.keyed_digests import digests as digests_of
from relay.store.keyed_digests import key
from relay.store.migrations import require_served
from relay.store.ordering import OrderingKeys
from relay.store.postgres import members, schema, totals
from relay.store.postgres.access import Access
from relay.store.postgres.connection import Connection, Pool
from relay.store.postgres.fences import Fences
from relay.store.postgres.group_commit import GroupCommit
from relay.store.postgres.leases import Leases
from relay.store.postgres.loop_connection import LoopConnection
from relay.store.postgres.outstanding import Outstanding
from relay.store.postgres.ownership import PostgresOwnership
from relay.store.postgres.server import Server
from relay.store.postgres.settings import PostgresSettings
from relay.store.postgres.shared import Shared
from relay.store.postgres.store import PostgresStore
from relay.store.postgres.transactions import Transactions
from relay.store.postgres.vacuum import ERASABLE, Vacuum, is_unfinished
from relay.store.postgres.visible_numbers import VisibleNumbers
from relay.store.totals import Totals

FIRST_SAMPLES = 3
"""Of the database's clock, since the first statement of a connection takes longer."""


async def open_store(
    settings: PostgresSettings,
    *,
    clock: Clock,
    committed: Callable[[float], None] = lambda _: None,
    counted: Callable[[Total], None] = lambda _: None,
    fences: Fences | None = None,
    synchronize: Callable[[ClockSample], int] = lambda _: 0,
) -> PostgresStore:
    """Connect and migrate; raises psycopg.Error and what `schema.migrate` raises.

    `committed` is passed the seconds of each transaction, and `counted` the total that a new event
    is part of, once that is on disk. `fences` take the place of what the cluster has agreed on.
    `synchronize` is passed samples of the database's clock, the first ones before `clock` is read,
    and returns the step that the clock made.
    """
    access = Access.of(settings)
    writer = LoopConnection(access)
    connections = [Connection(access) for _ in range(5)]
    background, leaser, pager, control, poller = connections
    spare = settings.pool_size - len(connections) - 1
    reader, searcher = (Pool(access, size=size) for size in (spare - spare // 2, spare // 2))
    connections += reader, searcher
    try:
        for _ in range(FIRST_SAMPLES):
            synchronize(await background.run(members.sample))
        now_ms = clock.now_ms()
        await background.run(lambda db: schema.migrate(db, settings.schema, now_ms=now_ms))
        newest = schema.steps()[-1].number
        digests, tokens = await background.run(digests_of)
        server = await background.run(Server.of)
        turns = await background.run(lambda db: OrderingKeys(key(db, "turns")))
        known = await reader.run(totals.refresh)
        unfinished = await reader.run(is_unfinished)
        outstanding = Outstanding(leaser, clock)
        await outstanding.read()
    except BaseException:
        for each in connections:
            await each.close()
        raise
    leases = Leases()
    ownership = PostgresOwnership(
        control,
        poller,
        reader,
        leases,
        synchronize=synchronize,
        on_reconstructions=outstanding.refresh,
        require_served=partial(require_served, f"the schema {settings.schema}", newest=newest),
    )
    shared = Shared(
        leaser=leaser,
        reader=reader,
        searcher=searcher,
        pager=pager,
        writer=GroupCommit(writer, clock=clock, committed=committed),
        background=Transactions(background, clock=clock),
        digests=digests,
        tokens=tokens,
        turns=turns,
        outstanding=outstanding,
        events=VisibleNumbers(reader, "events", "seq"),
        fences=fences or ownership,
        leases=leases,
        vacuum=Vacuum(partial(Connection, access), clock=clock),
        member=ownership.id,
    )
    ownership.on_outdated(shared.writer.refuse)
    ownership.on_outdated(shared.background.refuse)
    if unfinished:
        shared.vacuum.start(*ERASABLE)
    return PostgresStore(
        settings,
        access,
        shared,
        clock=clock,
        server=server,
        ownership=ownership,
        totals=Totals(known),
        counted=counted,
    )
