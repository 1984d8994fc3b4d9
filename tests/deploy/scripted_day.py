"""A scripted day of a relay, from midnight to midnight, as its metrics show it.

The real `Metrics` counts and is read once a minute, as by a scrape, so that names, types and label
sets are the relay's. The random numbers are seeded: every run is the same.

Two sources (`main`, and `academy` with two fifths of its traffic) and three sinks: `crm` and
`warehouse` take everything, `sales` takes leads and completed views. `incidents.EVENTFUL` says what
goes wrong and when. The fixture `scripted_day` (conftest.py) is a real Prometheus that has this
day, and what the recording rules make of it:

    def test_leads_have_come(scripted_day: Prometheus) -> None:
        assert scripted_day.ask("sum(relay_leads_captured_total)", at_s=incidents.END_S)
"""

import heapq
import itertools
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from relay.core.backlog_trend import BacklogTrend, Sample
from relay.core.event import LEAD_CAPTURED, MILESTONES, VIDEO_WATCHED, WEBHOOK_TEST, Outcome
from relay.core.sink_status import State, WaitReason
from relay.core.totals import Total
from relay.telemetry.metrics import UNKNOWN, Metrics
from tests.deploy.incidents import (
    END_S,
    EVENTFUL,
    GIB,
    GOES_ON,
    LEADS_PER_VIEW,
    SCRAPE_S,
    SINKS,
    SOURCES,
    START_S,
    STARTED_PER_HOUR,
    Incidents,
)

BEFORE = 50_000
"""How many leads, and views of each milestone, a source has had before the day."""

WAITS_IN: dict[State, WaitReason] = {
    "paused": "pause",
    "throttled": "breaker",
    "parked": "breaker",
    "active": "rate",
}
"""Why a sink in this state begins no delivery."""


class Arrival(NamedTuple):
    """A request that the sender makes; they are in order of time."""

    at_s: float
    source: str
    kind: str
    milestone: str = ""


class Acknowledged(NamedTuple):
    """An acknowledged request and its minute; the scrape at its end is the first to see it."""

    minute_s: int
    arrival: Arrival
    outcome: Outcome


class Scrape(NamedTuple):
    """One scrape; without metrics while the relay is away."""

    at_s: int
    started_s: int
    metrics: Metrics | None


@dataclass
class Queue:
    """The backlog of one sink, as times of arrival."""

    name: str
    waiting: deque[float] = field(default_factory=deque)
    dead: int = 0
    ended: int = 0
    trend: BacklogTrend = field(default_factory=BacklogTrend)
    last_state: State | None = None
    since_s: float = 0.0

    def takes(self, arrival: Arrival) -> bool:
        leads = arrival.kind == LEAD_CAPTURED or arrival.milestone == "completed"
        return arrival.kind != WEBHOOK_TEST and (self.name != "sales" or leads)

    def state(self, incidents: Incidents, now_s: int) -> State:
        states: tuple[State, ...] = ("paused", "parked", "throttled")
        told = (state for state in states if incidents.is_active(f"{self.name} {state}", now_s))
        return next(told, "active")


def _before() -> Iterator[Total]:
    """The store's totals before the day: enough for the days around it (fortnight.py)."""
    kinds = ((LEAD_CAPTURED, ""), *((VIDEO_WATCHED, milestone) for milestone in MILESTONES))
    for source, (kind, milestone) in itertools.product(SOURCES, kinds):
        yield Total(source, kind, milestone, BEFORE, (START_S - 600) * 1000)


class ScriptedDay:
    """Replays incidents into the metrics of one relay after another, minute by minute."""

    def __init__(self, incidents: Incidents = EVENTFUL) -> None:
        self._incidents = incidents
        self._random = Random(20260302)
        # Apart, so that the rest of the day does not depend on it.
        self._loop_random = Random(20260303)
        self._coming: list[Arrival] = []
        self._queues = [Queue(name) for name in SINKS]
        self._bytes = 180 << 20
        self._totals = {(each.source, each.kind, each.milestone): each for each in _before()}
        self.acknowledged: list[Acknowledged] = []
        self._started_s = START_S - 40_000
        self._metrics = self._begin(START_S)

    def scrapes(self) -> Iterator[Scrape]:
        """One scrape at each minute's end."""
        for now_s in range(START_S + SCRAPE_S, END_S + 1, SCRAPE_S):
            minute_s = now_s - SCRAPE_S
            if self._incidents.is_active("crash", minute_s):
                yield Scrape(now_s, self._started_s, None)
                continue
            if self._incidents.begins("update", minute_s):
                self._restart(minute_s, away_s=20)
            if self._incidents.is_active("crash", minute_s - SCRAPE_S):
                self._restart(minute_s, away_s=minute_s - self._incidents.parts["crash"][0])
            self._sender(minute_s)
            self._requests(now_s)
            self._disk(minute_s)
            self._loop()
            for queue in self._queues:
                self._deliver(queue, now_s)
            yield Scrape(now_s, self._started_s, self._metrics)

    def _begin(self, now_s: int) -> Metrics:
        sinks = [name for name in SINKS if not self._incidents.is_active(f"{name} removed", now_s)]
        revision = os.environ.get("RELAY_REVISION", "")
        metrics = Metrics(SOURCES, sinks, revision=revision)
        metrics.show_secrets("main", ["2026", "2025"])
        metrics.show_secrets("academy", ["1"])
        metrics.process.started(self._started_s * 1000)
        for total in self._totals.values():
            metrics.counted(total)
        return metrics

    def _restart(self, minute_s: int, *, away_s: int) -> None:
        self._started_s = minute_s + 1
        self._metrics = self._begin(minute_s)
        self._metrics.outages.was_down(away_s, 0)

    def _sender(self, minute_s: int) -> None:
        """Schedule the views that begin within the minute, and their later events."""
        hour = (minute_s - START_S) // 3600
        for source, share in zip(SOURCES, (1.0, 0.4), strict=True):
            for _ in range(self._poisson(STARTED_PER_HOUR[hour] * share / 60)):
                self._view(source, minute_s + self._random.uniform(0, 60))
            if self._random.random() < share / 40:
                heapq.heappush(self._coming, Arrival(minute_s + 5, source, "video.created"))
                kind = self._random.choice(("video.ready",) * 8 + ("video.failed", "video.deleted"))
                heapq.heappush(self._coming, Arrival(minute_s + 400, source, kind))

    def _view(self, source: str, at_s: float) -> None:
        quarter_s = self._random.uniform(20, 240)
        for milestone in MILESTONES:
            heapq.heappush(self._coming, Arrival(at_s, source, VIDEO_WATCHED, milestone))
            if self._random.random() > GOES_ON.get(milestone, 0):
                break
            at_s += quarter_s
        if self._random.random() < LEADS_PER_VIEW:
            heapq.heappush(self._coming, Arrival(at_s + 15, source, LEAD_CAPTURED))

    def _requests(self, now_s: int) -> None:
        """Handle the requests of the minute that ends now."""
        while self._coming and self._coming[0].at_s < now_s:
            self._take(heapq.heappop(self._coming), now_s)
        minute_s = now_s - SCRAPE_S
        if minute_s in self._incidents.once:
            source, kind, outcome = self._incidents.once[minute_s]
            self._accept(Arrival(minute_s + 9, source, kind), outcome, minute_s)
        if self._random.random() < 0.05:
            self._refuse(UNKNOWN, "path", 404)
        if self._incidents.is_active("strangers", minute_s):
            self._metrics.connection_limited("public", "address")
            self._metrics.outages.reconstructed("main", "video.watched")
            self._metrics.damaged("crm", 1)
            self._metrics.enriched("late")
            for reason in ("mismatch", "missing", "mismatch", "malformed"):
                self._refuse("academy", reason, 401)
        if self._incidents.is_active("stray", minute_s):
            self._refuse("main", "mismatch", 401)
        if self._incidents.begins("slow disk", minute_s):
            self._refuse("main", "stale", 401)
            self._metrics.skew("main", 412)
        rotating = self._incidents.is_active("rotation", minute_s)
        self._metrics.quarantined("main", 3 if rotating else 0)
        if rotating:
            self._metrics.mismatch_retried("main")
        if self._incidents.begins("config refused", minute_s):
            self._metrics.process.log_lines_dropped(120)
        self._metrics.process.reloaded(
            successful=not self._incidents.is_active("config refused", minute_s)
        )

    def _take(self, arrival: Arrival, now_s: int) -> None:
        minute_s = now_s - SCRAPE_S
        again = arrival._replace(at_s=arrival.at_s + 160)
        if arrival.source == "main" and self._incidents.is_active("rotation", minute_s):
            self._refuse("main", "mismatch", 401)
            heapq.heappush(self._coming, again)
        elif self._incidents.is_active("slow disk", minute_s) and self._random.random() < 0.02:
            self._refuse(arrival.source, "unavailable", 503)
            heapq.heappush(self._coming, again)
        else:
            outcome: Outcome = "duplicate" if self._random.random() < 0.01 else "accepted"
            self._accept(arrival, outcome, minute_s)

    def _accept(self, arrival: Arrival, outcome: Outcome, minute_s: int) -> None:
        self.acknowledged.append(Acknowledged(minute_s, arrival, outcome))
        metrics, source = self._metrics, arrival.source
        took_s = self._commit(arrival.at_s)
        metrics.request(source, 202 if outcome == "accepted" else 200)
        metrics.acknowledged(source, took_s + self._random.expovariate(900))
        metrics.skew(source, self._random.choice((0, 0, 0, 1, 1, 2)))
        old = arrival.at_s < self._incidents.parts["rotation"][0]
        metrics.verified(source, "1" if source == "academy" else "2025" if old else "2026")
        metrics.received(source, arrival.kind, outcome)
        if outcome != "accepted":
            return
        self._bytes += 3500
        label = (source, arrival.kind, arrival.milestone)
        total = self._totals.setdefault(label, Total(*label))
        total.add(int(arrival.at_s * 1000))
        metrics.counted(total)
        if arrival.kind == LEAD_CAPTURED:
            metrics.enriched("answered")
        for queue in self._queues:
            removed = self._incidents.is_active(f"{queue.name} removed", int(arrival.at_s))
            if queue.takes(arrival) and not removed:
                queue.waiting.append(arrival.at_s)

    def _refuse(self, source: str, reason: str, code: int) -> None:
        self._metrics.request(source, code)
        self._metrics.rejected(source, reason)

    def _commit(self, at_s: float) -> float:
        took_s = self._random.lognormvariate(-5.6, 0.5)
        if self._incidents.is_active("slow disk", int(at_s)):
            took_s += self._random.uniform(0.2, 1.4)
        self._metrics.store.committed(took_s)
        return took_s

    def _loop(self) -> None:
        for _ in range(SCRAPE_S):
            self._metrics.process.loop_lagged(self._loop_random.lognormvariate(-7, 0.8))

    def _disk(self, minute_s: int) -> None:
        for beat in range(0, SCRAPE_S, 5):
            self._commit(minute_s + beat)
        if minute_s % 3600 == 0:
            # Retention runs once an hour.
            self._bytes -= min(self._bytes // 120, 3 << 20)
        self._metrics.store.set_size(self._bytes)
        self._metrics.store.set_space(21 * GIB - self._bytes, floor=GIB >> 2, log=GIB >> 8)
        self._metrics.cluster.set(live=1, away=0, configs=1, free_sinks=0)

    def _deliver(self, queue: Queue, now_s: int) -> None:
        minute_s, removed = now_s - SCRAPE_S, f"{queue.name} removed"
        state = queue.state(self._incidents, minute_s)
        if self._incidents.begins(removed, minute_s):
            self._metrics.drop_sink(queue.name)
        if self._incidents.is_active(removed, minute_s):
            self._count(queue)
            queue.trend = BacklogTrend()
            return
        if state != queue.last_state:
            queue.last_state, queue.since_s = state, minute_s
        self._metrics.sink_state(queue.name, state, since_ms=round(queue.since_s * 1000))
        self._metrics.sink_waits(queue.name, WAITS_IN.get(state))
        self._metrics.standstill(queue.name, 0)
        if state == "active":
            while queue.waiting:
                self._send(queue, queue.waiting.popleft(), now_s)
        elif state != "paused" and queue.waiting:
            took_s = self._random.uniform(0.05, 0.3)
            self._metrics.attempted(queue.name, "parked" if state == "parked" else "retry", took_s)
        self._count(queue)
        sample = Sample(now_s, now_s * 1000, len(queue.waiting), queue.ended)
        queue.trend.add(sample, is_active=state == "active", give_up_after_s=3 * 86_400)
        self._metrics.flows.set(queue.name, queue.trend.flow)

    def _count(self, queue: Queue) -> None:
        """Also of a sink that the config no longer has."""
        oldest_ms = int(queue.waiting[0] * 1000) if queue.waiting else None
        self._metrics.backlog(queue.name, len(queue.waiting), queue.dead, oldest_ms)

    def _send(self, queue: Queue, came_s: float, now_s: int) -> None:
        queue.ended += 1
        took_s = self._random.lognormvariate(-2.6 if queue.name == "crm" else -3.6, 0.6)
        late_s = took_s if now_s - came_s < SCRAPE_S else now_s - came_s
        if queue.name == "crm" and self._incidents.is_active("refused by crm", now_s - SCRAPE_S):
            queue.dead += 1
            self._metrics.attempted(queue.name, "dead", took_s)
            self._metrics.settled(queue.name, "dead", late_s)
            return
        if self._random.random() < 0.01:
            self._metrics.attempted(queue.name, "retry", took_s)
            late_s += 1.05
        self._metrics.attempted(queue.name, "delivered", took_s)
        self._metrics.settled(queue.name, "delivered", late_s)

    def _poisson(self, mean: float) -> int:
        gaps = itertools.accumulate(iter(lambda: self._random.expovariate(1), None))
        return sum(1 for _ in itertools.takewhile(lambda sum_: sum_ < mean, gaps))
