"""Orders of operators: numbers that change with each, so that the other relays notice them."""

from collections.abc import Mapping

from relay.store.sql import Database, Sql

_COUNT = Sql("""
INSERT INTO main.state AS s (name, value) VALUES (:name, 1)
ON CONFLICT (name) DO UPDATE SET value = s.value + 1
""")
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


def count(db: Database, sink_to_try: str | None = None) -> None:
    """Note an order in the transaction that carries it out, or the order to try a sink at once."""
    db.execute(_COUNT, {"name": _ANY if sink_to_try is None else _RETRY + sink_to_try})


def count_opening(db: Database) -> None:
    """Note that there are new deliveries without a new event."""
    db.execute(_COUNT, {"name": _OPENED})


def retried(before: Orders, now: Orders) -> frozenset[str]:
    """Return the sinks that were ordered to be tried since an earlier look."""
    return frozenset(
        name.removeprefix(_RETRY)
        for name, number in now.items()
        if name.startswith(_RETRY) and number != before.get(name)
    )
