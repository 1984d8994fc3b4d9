"""Plans of the statements that run for each delivery, before the server knows the tables."""

from relay.store import Store
from tests.conftest import ManualClock
from tests.store.conformance import accept, event, lease, settlement
from tests.store.places import PostgresPlace
from tests.stub_server import until

EVENTS = 1500

_TOUCHED = """
SELECT relname, seq_tup_read, n_tup_ins, n_tup_upd FROM pg_stat_user_tables
WHERE schemaname = %s AND relname IN ('deliveries', 'events')
"""


async def settle_all(store: Store) -> None:
    while found := (await lease(store, limit=256)).deliveries:
        await store.settle(*map(settlement, found))


async def test_no_lease_or_settlement_scans_a_table(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    def touched() -> dict[str, tuple[int, int, int]]:
        rows = postgres_place.rows(_TOUCHED, postgres_place.schema)
        return {name: (scanned, inserted, updated) for name, scanned, inserted, updated in rows}

    async with postgres_place.open(clock) as store:
        await accept(store, *(event(f"e{number}") for number in range(EVENTS)))
        await settle_all(store)
    # The connections have ended, and with that have said what they did.
    wanted = {"deliveries": (0, EVENTS, EVENTS), "events": (0, EVENTS, 0)}
    await until(lambda: touched() == wanted, what=f"{wanted}, without rows that a scan read")
