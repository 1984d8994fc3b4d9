"""The scripted day: it has all that a relay exposes, and brings the alerts of its story."""

import re

import pytest

from relay.core.event import MILESTONES
from relay.telemetry.metrics import Metrics
from tests.deploy import fortnight, story
from tests.deploy.prometheus import Prometheus, rules

EXPECTED = {
    ("RelayDown", "page"): "18:30",
    ("RelaySignatureFailures", "ticket"): "13:00",
    ("RelayConflictingEvents", "ticket"): "14:14",
    ("RelayUnreadableEvents", "ticket"): "14:40",
    ("RelaySinkParked", "ticket"): "10:40",
    ("RelayBacklogOld", "ticket"): "10:40",
    ("RelayDeadLetters", "ticket"): "17:05",
    ("RelayConfigReloadFailed", "ticket"): "20:00",
}
"""The alerts of that day, with the time of what causes them; all within an hour of it."""


def test_the_day_has_every_series_that_a_relay_exposes(scripted_day: Prometheus) -> None:
    metrics = Metrics(story.SOURCES, story.SINKS, sqlite="3.51.2")
    exposed = set(re.findall(r"^(\w+)[ {]", metrics.exposition("")[0].decode(), re.MULTILINE))
    found = scripted_day.ask('count by (__name__) ({job="relay"})', at_s=story.at("12:00"))
    assert exposed <= {name for ((_, name),) in found}


@pytest.mark.parametrize("record", [rule["record"] for rule in rules("record")])
def test_the_rules_record_something_in_every_hour_of_the_day(
    scripted_day: Prometheus, record: str
) -> None:
    hours = scripted_day.ask_range(
        f"count({record})", from_s=story.START_S + 3600, to_s=story.END_S, step_s=3600
    )
    assert [len(values) for values in hours.values()] == [24]


def test_the_alerts_of_its_story_fire_and_no_others(scripted_day: Prometheus) -> None:
    times = {
        (rule["alert"], rule["labels"]["severity"]): min(firing)
        for rule in rules("alert")
        if (firing := [at_s for _, times in fortnight.firing(scripted_day, rule) for at_s in times])
    }
    assert times.keys() == EXPECTED.keys()
    for alert, clock in EXPECTED.items():
        assert 0 <= times[alert] - story.at(clock) <= 3600, alert


def test_fewer_people_reach_each_further_milestone(scripted_day: Prometheus) -> None:
    reached = scripted_day.ask(
        "sum by (milestone) (increase(relay_video_watched_total[1d]))", at_s=story.END_S
    )
    counts = [reached[(("milestone", each),)] for each in MILESTONES]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] > 500
