"""The dashboards' numbers agree with each other and with the events of the scripted day.

The day has two restarts and a relay that is away for three minutes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import pytest

from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED
from tests.deploy import dashboards, fortnight, incidents
from tests.deploy.prometheus import Labels, Prometheus
from tests.deploy.scripted_day import Acknowledged, ScriptedDay

Figures = dict[str, float]
Name = Callable[[Acknowledged], str | None]
"""The series that counts an event; None for none."""

STATS = {"Acknowledged", "Leads today", "Watched to the end", "Leads per 100 finished views"}
"""Numbers whose titles may be those of other panels too."""


@pytest.fixture(scope="module")
def came() -> list[Acknowledged]:
    day = ScriptedDay()
    for _ in day.scrapes():
        pass
    return day.acknowledged


@pytest.fixture(scope="module")
def seen(came: list[Acknowledged]) -> list[Acknowledged]:
    """The events after the first scrape: counters of a process start there."""
    return [each for each in came if each.minute_s > incidents.START_S]


def figures(
    name: str,
    title: str,
    server: Prometheus,
    *,
    from_s: int = incidents.START_S,
    to_s: int = incidents.END_S,
) -> Iterator[Figures]:
    """The values of each query of a panel, by the names of its series; bars are added up."""
    panel = dashboards.panel(name, title, stat=title in STATS)
    for asked in dashboards.asks(panel, from_s=from_s, to_s=to_s):
        yield {
            asked.name(labels) or source(labels): sum(
                value for at_s, value in values if at_s < to_s or not asked.step_s
            )
            for labels, values in asked.answer(server).items()
        }


def source(labels: Labels) -> str:
    return dict(labels).get("source", "")


def counted(came: Iterable[Acknowledged], name: Name) -> Figures:
    return dict(Counter(each for each in map(name, came) if each is not None))


def lead(each: Acknowledged) -> str | None:
    is_lead = (each.arrival.kind, each.outcome) == (LEAD_CAPTURED, "accepted")
    return each.arrival.source if is_lead else None


def view(milestone: str, name: str = "") -> Name:
    def of(each: Acknowledged) -> str | None:
        is_it = (each.arrival.milestone, each.outcome) == (milestone, "accepted")
        return (name or each.arrival.source) if is_it else None

    return of


def new(each: Acknowledged) -> str | None:
    """The kind of a new event that is no view."""
    is_view = each.arrival.kind == VIDEO_WATCHED
    return None if is_view or each.outcome != "accepted" else each.arrival.kind


def new_view(each: Acknowledged) -> str | None:
    is_one = (each.arrival.kind, each.outcome) == (VIDEO_WATCHED, "accepted")
    return each.arrival.source if is_one else None


LEADS_AND_VIEWS: dict[str, list[Name]] = {
    "Leads by source": [lead],
    "Leads over time": [lead],
    "By source": [lead, view("started"), view("completed")],
    "How far people watch": [
        view("started", "Started"),
        view("25%", "Watched 25 %"),
        view("50%", "Watched 50 %"),
        view("75%", "Watched 75 %"),
        view("completed", "Finished"),
    ],
    "Views over time": [view("started", "Started"), view("completed", "Finished")],
}
EVENTS: dict[str, Name] = {
    "Acknowledged": lambda _: "",
    "Views": new_view,
    "Events other than views": new,
    "Duplicates and oddities": lambda each: each.outcome if each.outcome != "accepted" else None,
}


@pytest.mark.parametrize("title", LEADS_AND_VIEWS)
def test_leads_and_views_are_those_of_the_day(
    two_weeks: Prometheus, came: list[Acknowledged], title: str
) -> None:
    found = [*figures("engagement", title, two_weeks)]
    wanted = [counted(came, name) for name in LEADS_AND_VIEWS[title]]
    assert found[: len(wanted)] == wanted


@pytest.mark.parametrize("title", EVENTS)
def test_requests_and_events_are_those_of_the_day(
    two_weeks: Prometheus, seen: list[Acknowledged], title: str
) -> None:
    assert [*figures("relay", title, two_weeks)] == [counted(seen, EVENTS[title])]


def test_leads_so_far_are_those_since_midnight(
    two_weeks: Prometheus, came: list[Acknowledged]
) -> None:
    for clock in ("05:59", "06:01", "18:31", "18:34", "23:59"):
        until_s = incidents.at(clock)
        so_far = [each for each in came if each.minute_s < until_s]
        (found,) = figures("engagement", "Leads today", two_weeks, to_s=until_s)
        assert found == {"": sum(counted(so_far, lead).values())}, clock


def test_two_weeks_have_one_total_in_all_panels(two_weeks: Prometheus) -> None:
    def shown(title: str) -> list[Figures]:
        first_s, last_s = fortnight.SHOWN["engagement"]
        return [*figures("engagement", title, two_weeks, from_s=first_s, to_s=last_s)]

    leads, started, finished, *_ = shown("By source")
    assert shown("Leads over time") == shown("Leads by source") == [leads]
    views = [{"Started": sum(started.values())}, {"Finished": sum(finished.values())}]
    assert shown("Views over time") == views
    assert [each[""] for each in shown("When leads come in")] == [sum(leads.values())]
    first, *_, last = shown("How far people watch")
    assert [first, last] == views


@pytest.mark.parametrize("name", dashboards.NAMES)
def test_no_count_is_abbreviated(name: str) -> None:
    others = [
        each for each in dashboards.panels(dashboards.read(name)) if each["type"] != "heatmap"
    ]
    assert "short" not in {each["fieldConfig"]["defaults"]["unit"] for each in others}


def test_shares_are_those_of_the_counts(two_weeks: Prometheus, came: list[Acknowledged]) -> None:
    started, finished, leads = (
        sum(counted(came, of).values()) for of in (view("started"), view("completed"), lead)
    )
    (watched,) = figures("engagement", "Watched to the end", two_weeks)
    assert watched[""] == pytest.approx(finished / started)
    (per_hundred,) = figures("engagement", "Leads per 100 finished views", two_weeks)
    assert per_hundred[""] == pytest.approx(100 * leads / finished)


@pytest.mark.parametrize(
    "zone",
    [UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata"), ZoneInfo("Asia/Kathmandu")],
    ids=str,
)
@pytest.mark.parametrize(
    ("title", "name"), [("When people watch", new_view), ("When leads come in", lead)]
)
def test_hours_of_the_day_are_local_in_zones_of_quarter_hours_too(
    two_weeks: Prometheus, came: list[Acknowledged], zone: tzinfo, title: str, name: Name
) -> None:
    def hour(each: Acknowledged) -> str | None:
        return datetime.fromtimestamp(each.minute_s, zone).strftime("%H") if name(each) else None

    panel = dashboards.panel("engagement", title)
    (asked,) = dashboards.asks(panel, from_s=incidents.START_S, to_s=incidents.END_S - 1)
    (values,) = asked.answer(two_weeks).values()
    found = dashboards.by_hour(panel, values, zone)
    assert {name: count for name, count in found.items() if count} == counted(came, hour)
    assert [*found] == [f"{hour:02}" for hour in range(24)]


def test_answers_add_up_to_the_acknowledged_requests(
    two_weeks: Prometheus, seen: list[Acknowledged]
) -> None:
    (by_code,) = figures("relay", "Requests by answer", two_weeks)
    by_answer = counted(seen, lambda each: "202" if each.outcome == "accepted" else "200")
    assert {code: by_code[code] for code in ("200", "202")} == by_answer
    verified, _ = figures("relay", "Verified, by secret", two_weeks)
    assert sum(verified.values()) == len(seen)


def test_delivering_attempts_equal_delivered_deliveries(two_weeks: Prometheus) -> None:
    ended, _ = figures("relay", "Deliveries that ended", two_weeks)
    (tries,) = figures("relay", "Tries by result", two_weeks)
    delivered = sum(count for name, count in ended.items() if name.endswith(": delivered"))
    assert tries["delivered"] == delivered > 1000
