"""Two weeks of leads and views around the scripted day, and the day's alerts.

Each day repeats the scripted one with traffic by the day of the week, so that a week can be
compared with the one before. `VIEWED_S` is the Thursday after the scripted Monday.
The alerts are those that Prometheus would have recorded on the scripted day.
"""

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.deploy import tsdb
from tests.deploy.incidents import END_S, SCRAPE_S, START_S
from tests.deploy.prometheus import JOB, Labels, Prometheus, rules
from tests.deploy.scripted_day import BEFORE
from tests.deploy.tsdb import Point

DAY_S = 86_400
VIEWED_S = START_S + 3 * DAY_S + 17 * 3600
"""Thursday, 17:00 UTC."""
FIRST_S = START_S - 10 * DAY_S
"""The Friday thirteen days before: the two weeks that the dashboard shows at first."""

SHOWN = {"engagement": (FIRST_S, VIEWED_S), "relay": (START_S, END_S)}
"""Time shown in tests and pictures: the one's default, and the whole scripted day."""

BUSY = (1.0, 1.1, 1.18, 1.05, 0.8, 0.34, 0.28)
"""Relative traffic by day of the week, from Monday."""
EARLIER = 0.86
"""The week before had fewer viewers."""

_STEP_S = 300
_COUNTERS = ("relay_leads_captured_total", "relay_video_watched_total")
_UNIT_S = {"m": 60, "h": 3600, "d": DAY_S}


def write(folder: Path, day: Prometheus) -> None:
    """Write the blocks of the day itself, its alerts and the days around it into a data folder."""
    # Blocks are immutable, also while they are read.
    shutil.copytree(day._data, folder, ignore=shutil.ignore_patterns("lock", "wal", "chunks_head"))
    points = sorted((*_around(day), *_alerts(day)))
    tsdb.write_points(folder, points)


def _around(day: Prometheus) -> Iterator[Point]:
    for counter in _COUNTERS:
        found = day.ask_range(counter, from_s=START_S + _STEP_S, to_s=END_S, step_s=_STEP_S)
        for labels, values in found.items():
            counts = [BEFORE, *(value for _, value in values)]
            grown = [after - before for before, after in pairwise(counts)]
            head = tsdb.series_of(dict(labels))
            earlier = sum(map(_factor, range(-13, 0))) * sum(grown)
            yield from _days(head, grown, range(-13, 0), begin=BEFORE - earlier)
            yield from _days(head, grown, range(1, 4), begin=counts[-1])
    for source in ("main", "academy"):
        for kind, ago_s in (("lead.captured", 1260), ("video.watched", 95)):
            head = tsdb.series_of(
                {
                    "__name__": "relay_last_event_timestamp_seconds",
                    "event": kind,
                    "source": source,
                    "instance": tsdb.INSTANCE,
                    "job": JOB,
                }
            )
            for at_s in range(VIEWED_S - 3600, VIEWED_S + 1, _STEP_S):
                yield at_s, head, at_s - ago_s


def _days(head: str, grown: list[float], days: range, *, begin: float) -> Iterator[Point]:
    """Count on from day to day."""
    count = begin
    for number in days:
        for step, more in enumerate(grown, start=1):
            count += more * _factor(number)
            at_s = START_S + number * DAY_S + step * _STEP_S
            if at_s <= VIEWED_S:
                # At the end of the days before, this is what the scripted day begins with.
                yield at_s, head, float(round(count))


def _factor(number: int) -> float:
    """Relative traffic of a day, counted from the scripted one."""
    return BUSY[number % 7] * (1 if number > 0 else EARLIER)


def _alerts(day: Prometheus) -> Iterator[Point]:
    for rule in rules("alert"):
        for labels, times in firing(day, rule):
            alert = {**dict(labels), **rule["labels"], "alertname": rule["alert"]}
            alert |= {"__name__": "ALERTS", "alertstate": "firing"}
            yield from ((at_s, tsdb.series_of(alert), 1.0) for at_s in times)


def firing(day: Prometheus, rule: dict[str, str]) -> Iterator[tuple[Labels, list[int]]]:
    """The scrapes of the day at which an alert fires, by the labels of its series."""
    lasting_s, kept_s = (_seconds(rule.get(key, "0m")) for key in ("for", "keep_firing_for"))
    found = day.ask_range(rule["expr"], from_s=START_S + SCRAPE_S, to_s=END_S, step_s=SCRAPE_S)
    for labels, values in found.items():
        times: set[int] = set()
        since_s = before_s = 0
        for at_s in (int(at_s) for at_s, _ in values):
            since_s = since_s if at_s - before_s == SCRAPE_S else at_s
            before_s = at_s
            if at_s - since_s >= lasting_s:
                times.update(range(at_s, min(at_s + kept_s, END_S) + 1, SCRAPE_S))
        yield labels, sorted(times)


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * _UNIT_S[duration[-1]]
