"""Checks that every acknowledged event arrived, and that the database agrees."""

import time
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import groupby

from tests.guarantees.cluster.cluster import Cluster
from tests.guarantees.cluster.sinks import CONCURRENCY, IN_FLIGHT_MAX, ORDERED, TAKES
from tests.guarantees.destinations import Arrival, Key
from tests.guarantees.ledger import Place
from tests.store.places import PostgresPlace

NEAR_S = 5.0
"""Longest time from an answer to the write of its outcome, on a busy machine."""


@dataclass(frozen=True)
class StoredState:
    """Contents of the database at the end."""

    events: frozenset[Key]
    deliveries: dict[Place, str]
    attempts: Counter[Place]
    unanswered: Counter[Place]
    owners: dict[str, list[tuple[float, str | None]]]
    """For each sink, since when which relay's admin listener has owned it."""


def read(place: PostgresPlace) -> StoredState:
    owners = defaultdict(list)
    for sink, at_s, address in place.rows(
        "SELECT o.sink, o.at_s, m.address FROM relay.owners o"
        " LEFT JOIN relay.known_members m ON m.id = o.holder ORDER BY o.at_s"
    ):
        owners[sink].append((at_s, address))
    tried = """
        SELECT a.sink, e.source, e.id, count(*), count(*) FILTER (WHERE a.status IS NULL)
        FROM relay.attempts a JOIN relay.events e ON e.seq = a.event GROUP BY 1, 2, 3
    """
    attempts, unanswered = Counter[Place](), Counter[Place]()
    for sink, source, event_id, count, silent in place.rows(tried):
        attempts[sink, (source, event_id)] = count
        unanswered[sink, (source, event_id)] = silent
    return StoredState(
        events=frozenset(place.rows("SELECT source, id FROM relay.events")),
        deliveries={
            (sink, (source, event_id)): status
            for sink, source, event_id, status in place.rows(
                "SELECT d.sink, e.source, e.id, d.status"
                " FROM relay.deliveries d JOIN relay.events e ON e.seq = d.event"
            )
        },
        attempts=attempts,
        unanswered=unanswered,
        owners=dict(owners),
    )


def check(cluster: Cluster) -> str:
    """Check all invariants; return a summary in words."""
    stored = read(cluster.place)
    taken = {destination.name: destination.taken for destination in cluster.destinations}
    dead = {place for place, status in stored.deliveries.items() if status == "dead"}
    _nothing_is_lost(cluster, stored, taken, dead)
    _nothing_is_invented(cluster)
    strays = stray_arrivals(cluster, stored)
    _order_is_kept(cluster, [arrival for _, arrival in strays])
    unrecorded = _duplicates_were_in_flight(cluster, stored, taken)
    limit = len(cluster.faults) * len(TAKES) * CONCURRENCY
    assert len(strays) <= limit, f"{len(strays)} requests of relays that did not own the sink"
    return _summary(cluster, taken, dead=len(dead), unrecorded=unrecorded, strays=len(strays))


def _nothing_is_lost(
    cluster: Cluster, stored: StoredState, taken: dict[str, Counter[Key]], dead: set[Place]
) -> None:
    load = cluster.load
    lost = [
        (sink, key)
        for key in load.acknowledged
        for sink, kinds in TAKES.items()
        if load.posted[key].kind in kinds and key not in taken[sink] and (sink, key) not in dead
    ]
    assert lost == []
    assert load.acknowledged <= stored.events
    assert "pending" not in stored.deliveries.values()


def _nothing_is_invented(cluster: Cluster) -> None:
    for destination in cluster.destinations:
        for arrival in destination.arrivals:
            assert arrival.body == cluster.load.posted[arrival.key].body
            assert arrival.kind in TAKES[destination.name]


def _order_is_kept(cluster: Cluster, strays: list[Arrival]) -> None:
    """What came again at once is one; numbers follow the order of acceptance.

    What a relay had begun when it was stopped may come late, and is left out.
    """
    came: defaultdict[str, list[Arrival]] = defaultdict(list)
    (destination,) = (each for each in cluster.destinations if each.name == ORDERED)
    for arrival in destination.arrivals:
        if arrival not in strays:
            came[cluster.load.posted[arrival.key].video].append(arrival)
    for video, arrivals in came.items():
        once = [event_id for event_id, _ in groupby(arrival.key[1] for arrival in arrivals)]
        seen = [(each.key[1], each.member, each.at_s, each.status) for each in arrivals]
        assert once == sorted(set(once)), f"the order of {video}: {seen}, {cluster.faults}"


def _duplicates_were_in_flight(
    cluster: Cluster, stored: StoredState, taken: dict[str, Counter[Key]]
) -> int:
    """Each duplicate follows a request that the database knows nothing of, near a fault."""
    arrivals: defaultdict[Place, list[Arrival]] = defaultdict(list)
    for destination in cluster.destinations:
        for arrival in destination.arrivals:
            arrivals[destination.name, arrival.key].append(arrival)
    unrecorded = {
        place: len(came) - stored.attempts[place]
        for place, came in arrivals.items()
        if len(came) > stored.attempts[place]
    }
    peer = {
        place: count
        for place, count in unrecorded.items()
        if count > sum(_is_near(cluster, arrival) for arrival in arrivals[place])
    }
    assert peer == {}, "requests without a recorded attempt that no fault explains"
    unexplained = {
        (sink, key): times
        for sink, keys in taken.items()
        for key, times in keys.items()
        if times - 1 > unrecorded.get((sink, key), 0) + stored.unanswered[sink, key]
    }
    assert unexplained == {}
    total = sum(unrecorded.values())
    assert total <= len(cluster.faults) * len(TAKES) * IN_FLIGHT_MAX
    return total


def _is_near(cluster: Cluster, arrival: Arrival) -> bool:
    return any(
        fault.from_s - NEAR_S <= arrival.at_s <= fault.until_s + NEAR_S for fault in cluster.faults
    )


def stray_arrivals(cluster: Cluster, stored: StoredState) -> list[tuple[str, Arrival]]:
    """Return each request of a relay that did not own the sink at that moment."""
    epoch_s = time.time() - time.monotonic()
    names = {relay.admin_url: relay.config.parent.name for relay in cluster.relays}
    found = []
    for destination in cluster.destinations:
        changes = stored.owners[destination.name]
        times = [at_s for at_s, _ in changes]
        for arrival in destination.arrivals:
            owner = changes[bisect_right(times, arrival.at_s + epoch_s) - 1][1]
            if owner is None or names[owner] != arrival.member:
                found.append((destination.name, arrival))
    return found


def _summary(
    cluster: Cluster, taken: dict[str, Counter[Key]], *, dead: int, unrecorded: int, strays: int
) -> str:
    load = cluster.load
    duplicates = sum(keys.total() - len(keys) for keys in taken.values())
    refused = {answer: count for answer, count in load.answers.items() if answer != "202"}
    faults = Counter(fault.name for fault in cluster.faults)
    return (
        f"{len(cluster.faults)} faults ({', '.join(f'{n} {name}' for name, n in faults.items())}): "
        f"{len(load.acknowledged)} of {len(load.posted)} events acknowledged, "
        f"{sum(map(len, taken.values()))} deliveries, {dead} dead letters, none lost; "
        f"{duplicates} duplicates, {unrecorded} requests cut off by a fault, "
        f"{strays} of a relay that had just lost its sink, order kept; "
        f"other answers than 202: {refused or 'none'}"
    )
