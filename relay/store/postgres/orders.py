"""Orders of operators: numbers that change with each, so that the other relays notice them."""

from collections.abc import Mapping

from relay.store.postgres.driver import Database

_COUNT = """
INSERT INTO relay.state AS s (name, value) VALUES (%s, 1)
ON CONFLICT (name) DO UPDATE SET value = s.value + 1
"""
_ANY = "orders"
_RETRY = "retry "
_OPENED = "opened"

NUMBERS = f"""
SELECT coalesce(json_object_agg(name, value), '{{}}') FROM relay.state
WHERE name = '{_ANY}' OR starts_with(name, '{_RETRY}')
"""
"""The number of all orders, and of those to try a sink."""

OPENINGS = f"SELECT value FROM relay.state WHERE name = '{_OPENED}'"
"""The number of steps in which replays have opened deliveries."""

Orders = Mapping[str, int]


def count(db: Database) -> None:
    """Note an order in the transaction that carries it out."""
    db.execute(_COUNT, (_ANY,))


def count_retry(db: Database, sink: str) -> None:
    """Note the order to try a sink at once."""
    db.execute(_COUNT, (_RETRY + sink,))


def count_opening(db: Database) -> None:
    """Note that there are new deliveries without a new event."""
    db.execute(_COUNT, (_OPENED,))


def retried(before: Orders, now: Orders) -> frozenset[str]:
    """Return the sinks that were ordered to be tried since an earlier look."""
    return frozenset(
        name.removeprefix(_RETRY)
        for name, number in now.items()
        if name.startswith(_RETRY) and number != before.get(name)
    )
