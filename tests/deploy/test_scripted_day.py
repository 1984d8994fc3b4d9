"""The scripted day: it brings its alerts, and a value for every recording rule."""

import pytest

from tests.deploy import fortnight, incidents
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
    ("RelayLogLinesDropped", "ticket"): "20:00",
}
"""The alerts of that day with the time of their cause; all fire within an hour of it."""


@pytest.mark.parametrize("record", [rule["record"] for rule in rules("record")])
def test_the_rules_record_something_in_every_hour_of_the_day(
    scripted_day: Prometheus, record: str
) -> None:
    hours = scripted_day.ask_range(
        f"count({record})", from_s=incidents.START_S + 3600, to_s=incidents.END_S, step_s=3600
    )
    assert [len(values) for values in hours.values()] == [24]


def test_the_alerts_of_its_incidents_fire_and_no_others(scripted_day: Prometheus) -> None:
    times = {
        (rule["alert"], rule["labels"]["severity"]): min(firing)
        for rule in rules("alert")
        if (firing := [at_s for _, times in fortnight.firing(scripted_day, rule) for at_s in times])
    }
    assert times.keys() == EXPECTED.keys()
    for alert, clock in EXPECTED.items():
        assert 0 <= times[alert] - incidents.at(clock) <= 3600, alert
