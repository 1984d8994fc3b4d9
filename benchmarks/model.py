"""Relays at loads that no benchmark makes: a queueing model, fed with measured service times.

`python -m benchmarks.model [--sinks N] [--per-event N] [--answer-ms N] [--slots N] [--cores N]`
reads `service_times.toml`, which `benchmarks.service_times` measures. With SQLite, each relay has
its own store and its share of the sources; with PostgreSQL, relays share one database, and each
sink is dispatched by one of them.
"""

import argparse
import math
import tomllib
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from benchmarks import rig
from relay.store.sqlite.group_commit import BATCH_MAX

FILE = Path(__file__).with_name("service_times.toml")
LOADS = (1, 10, 100)
RELAYS = (1, 3, 10)


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cost of each item, and one that the items of a transaction share, in milliseconds."""

    item: float
    transaction: float

    @classmethod
    def between(cls, alone: tuple[float, float], together: tuple[float, float]) -> Self:
        """Solve it from two measured pairs: items per transaction, and milliseconds per item."""
        (few, dear), (many, cheap) = alone, together
        transaction = max(0.0, (dear - cheap) / (1 / few - 1 / many)) if many > few else 0.0
        return cls(max(0.0, cheap - transaction / many), transaction)

    def per_item(self, items: float) -> float:
        return self.item + self.transaction / items


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured costs of a relay on one kind of store."""

    accept: Share
    """Processor time of the relay for an acknowledgement."""
    deliver: Share
    """Processor time of the relay for a delivery."""
    commit: Share
    """Duration of a commit, per event in it and in itself."""
    database_accept: Share
    """Processor time of the database server for an acknowledgement."""
    database_deliver: Share
    """Processor time of the database server for a delivery."""
    processors: float
    """Processors that a saturated relay uses."""

    def used(self, items: float, accepted_per_s: float, delivered_per_s: float) -> float:
        """Return the relay's utilisation with this many items in a transaction."""
        accepting_ms = accepted_per_s * self.accept.per_item(items)
        delivering_ms = delivered_per_s * self.deliver.per_item(items)
        return (accepting_ms + delivering_ms) / 1000 / self.processors

    def commit_ms(self, items: float) -> float:
        return self.commit.transaction + items * self.commit.item


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `service_times.toml` holds."""

    machine: str
    carried: float
    """Events a second that one relay on SQLite stores and delivers to one HTTP sink."""
    sqlite: Engine
    postgres: Engine


class Surroundings(NamedTuple):
    """Sinks, among which deliveries are spread evenly, and the cores of the database's server."""

    sinks: int
    per_event: float
    """Sinks that take one event."""
    answer_ms: float
    slots: int
    """Requests to one sink at once."""
    cores: int


class Estimate(NamedTuple):
    """Utilisation of each station (1 is saturated), and milliseconds of waiting."""

    relay: float
    commit: float
    database: float
    sink: float
    answer_ms: float
    answer_p99_ms: float
    slot_wait_ms: float

    @property
    def busiest(self) -> str:
        return max(self._stations(), key=self._stations().__getitem__)

    @property
    def carried(self) -> float:
        """Share of the load that gets through for as long as it lasts."""
        return min(1.0, 1 / max(self._stations().values()))

    def _stations(self) -> dict[str, float]:
        return {
            "relay": self.relay,
            "commit": self.commit,
            "database": self.database,
            "sink": self.sink,
        }


def load(path: Path) -> Times:
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Times)


def batch(engine: Engine, accepted_per_s: float, delivered_per_s: float) -> float:
    """Return the acceptances and settlements in one transaction, which grow with the load.

    They are those that arrive while the one before is written and the relay is busy with others.
    """

    def missing(items: float) -> float:
        wait_ms = _queue(
            engine.accept.per_item(items), engine.used(items, accepted_per_s, delivered_per_s)
        )
        per_ms = (accepted_per_s + delivered_per_s) / 1000
        return per_ms * (engine.commit_ms(items) + wait_ms) - items

    low, high = 1.0, float(BATCH_MAX)
    if missing(low) <= 0:
        return low
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if missing(middle) > 0 else (low, middle)
    return high


def erlang_c(slots: int, offered: float) -> float:
    """Return the share of requests that find all slots taken; `offered` counts the busy slots."""
    if offered >= slots:
        return 1.0
    blocked = 1.0
    for slot in range(1, slots + 1):
        blocked = offered * blocked / (slot + offered * blocked)
    return blocked / (1 - offered / slots * (1 - blocked))


def estimate(
    engine: Engine, per_s: float, relays: int, around: Surroundings, *, shared: bool
) -> Estimate:
    """Estimate the busiest of the relays; `shared` is one database, else each has its store."""
    accepted = per_s / relays
    to_one_sink = per_s * around.per_event / around.sinks
    if shared:
        # A sink has one dispatcher, so more relays than sinks deliver no faster.
        delivered = math.ceil(around.sinks / relays) * to_one_sink
    else:
        to_one_sink /= relays
        delivered = around.sinks * to_one_sink
    items = batch(engine, accepted, delivered)
    relay = engine.used(items, accepted, delivered)
    commit_ms = engine.commit_ms(items)
    transactions = (accepted + delivered) / items
    accepting_ms = engine.database_accept.per_item(items)
    delivering_ms = engine.database_deliver.per_item(items)
    database_ms = per_s * (accepting_ms + around.per_event * delivering_ms)
    service_ms = engine.accept.per_item(items)
    return Estimate(
        relay=relay,
        commit=(accepted + delivered) * engine.commit.per_item(BATCH_MAX) / 1000,
        database=database_ms / 1000 / around.cores if shared else 0.0,
        sink=to_one_sink * around.answer_ms / 1000 / around.slots,
        answer_ms=_queue(service_ms, relay)
        + min(1.0, transactions * commit_ms / 1000) * commit_ms / 2
        + commit_ms,
        # The slowest come right after a commit has begun, and wait for all of it.
        answer_p99_ms=_queue_p99(service_ms, relay) + 2 * commit_ms,
        slot_wait_ms=_slot_wait_ms(to_one_sink, around),
    )


def _slot_wait_ms(to_one_sink: float, around: Surroundings) -> float:
    busy = to_one_sink * around.answer_ms / 1000
    if busy >= around.slots:
        return math.inf
    return erlang_c(around.slots, busy) * around.answer_ms / (around.slots - busy)


def _queue(service_ms: float, used: float) -> float:
    """Return the mean wait in an M/M/1 queue."""
    return service_ms * used / (1 - used) if used < 1 else math.inf


def _queue_p99(service_ms: float, used: float) -> float:
    if used >= 1:
        return math.inf
    return max(0.0, service_ms / (1 - used) * math.log(100 * used)) if used else 0.0


def rows(times: Times, around: Surroundings) -> list[tuple[str, ...]]:
    """Return a table of both engines at all loads."""
    head = (
        *("store", "load", "events/s", "relays", "relay", "commit", "database", "sink"),
        *("first full", "carried", "answer ms", "p99 ms", "wait for a slot, ms"),
    )
    table: list[tuple[str, ...]] = [head]
    for name, engine in (("sqlite", times.sqlite), ("postgres", times.postgres)):
        for load_ in LOADS:
            for relays in RELAYS:
                per_s = load_ * times.carried
                found = estimate(engine, per_s, relays, around, shared=name == "postgres")
                table.append((name, f"{load_}x", f"{per_s:,.0f}", str(relays), *_cells(found)))
    return table


def _cells(found: Estimate) -> tuple[str, ...]:
    stations = (found.relay, found.commit, found.database, found.sink)
    waits = (found.answer_ms, found.answer_p99_ms, found.slot_wait_ms)
    return (
        *(f"{used:.2f}" for used in stations),
        found.busiest,
        f"{found.carried:.0%}",
        *("grows" if math.isinf(wait) else f"{wait:.1f}" for wait in waits),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model")
    parser.add_argument("--sinks", type=int, default=10)
    parser.add_argument("--per-event", type=float, default=1.0, help="sinks that take an event")
    parser.add_argument("--answer-ms", type=float, default=5.0, help="of a sink")
    parser.add_argument("--slots", type=int, default=16, help="requests to a sink at once")
    parser.add_argument("--cores", type=int, default=8, help="of the database's server")
    given = parser.parse_args()
    around = Surroundings(given.sinks, given.per_event, given.answer_ms, given.slots, given.cores)
    times = load(FILE)
    print(f"service times of {times.machine}")
    limit = 1 / times.sqlite.used(BATCH_MAX, 1, 1)
    print(f"one relay on SQLite, one sink: {limit:.0f} per second, {times.carried:.0f} measured")
    rig.table(rows(times, around))


if __name__ == "__main__":
    main()
