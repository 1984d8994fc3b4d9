"""The dashboards' numbers: those that speak of the same thing are the same, and are what came.

The scripted day has two restarts, a relay that is away for three minutes, and knows what came.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import pytest

from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED
from tests.deploy import fortnight, story, viewer
from tests.deploy.day import Acknowledged, Day
from tests.deploy.prometheus import Labels, Prometheus

Figures = dict[str, float]

STEPS = {"Started": "started", "Finished": "completed"}


@pytest.fixture(scope="module")
def came() -> list[Acknowledged]:
    day = Day()
    for _ in day.scrapes():
        pass
    return day.acknowledged


@pytest.fixture(scope="module")
def seen(came: list[Acknowledged]) -> list[Acknowledged]:
    """What a Prometheus saw come that knows of nothing before the first scrape."""
    return [each for each in came if each.minute_s > story.START_S]


def figures(
    name: str,
    title: str,
    two_weeks: Prometheus,
    *,
    from_s: int = story.START_S,
    to_s: int = story.END_S,
) -> Iterator[Figures]:
    """What each query of a panel shows, by the names of its series; bars are added up."""
    (panel,) = [
        each
        for each in viewer.panels(viewer.read(name))
        if (each["title"], each["type"] == "stat") == (title, title in STATS)
    ]
    for asked in viewer.asks(panel, from_s=from_s, to_s=to_s):
        yield {
            asked.name(labels) or source(labels): sum(
                value for at_s, value in values if at_s < to_s or not asked.step_s
            )
            for labels, values in asked.answer(two_weeks).items()
        }


STATS = {"Acknowledged", "Leads today", "Watched to the end", "Leads per 100 finished views"}


def source(labels: Labels) -> str:
    return dict(labels).get("source", "")


def counted(came: Iterable[Acknowledged], of: Callable[[Acknowledged], str | None]) -> Figures:
    """Count by what the function makes of each; None leaves it out."""
    return dict(Counter(name for name in map(of, came) if name is not None))


def lead(each: Acknowledged) -> str | None:
    is_lead = (each.arrival.kind, each.outcome) == (LEAD_CAPTURED, "accepted")
    return each.arrival.source if is_lead else None


def view(milestone: str) -> Callable[[Acknowledged], str | None]:
    def of(each: Acknowledged) -> str | None:
        is_it = (each.arrival.milestone, each.outcome) == (milestone, "accepted")
        return each.arrival.source if is_it else None

    return of


@pytest.mark.parametrize("title", ["Leads by source", "Leads over time"])
def test_leads_by_source_are_those_that_came(
    two_weeks: Prometheus, came: list[Acknowledged], title: str
) -> None:
    assert [*figures("engagement", title, two_weeks)] == [counted(came, lead)]


def test_the_table_has_the_same_leads_and_views(
    two_weeks: Prometheus, came: list[Acknowledged]
) -> None:
    leads, started, finished, *_ = figures("engagement", "By source", two_weeks)
    assert leads == counted(came, lead)
    assert started == counted(came, view("started"))
    assert finished == counted(came, view("completed"))


def test_leads_so_far_are_those_that_came_since_midnight(
    two_weeks: Prometheus, came: list[Acknowledged]
) -> None:
    for clock in ("05:59", "06:01", "18:31", "18:34", "23:59"):
        until_s = story.at(clock)
        so_far = [each for each in came if each.minute_s < until_s]
        (found,) = figures("engagement", "Leads today", two_weeks, to_s=until_s)
        assert found == {"": sum(counted(so_far, lead).values())}, clock


def test_the_funnel_has_the_views_that_came(
    two_weeks: Prometheus, came: list[Acknowledged]
) -> None:
    steps = [
        sum(counted(came, view(milestone)).values())
        for milestone in ("started", "25%", "50%", "75%", "completed")
    ]
    found = [*figures("engagement", "How far people watch", two_weeks)]
    assert [[*each.values()] for each in found] == [[count] for count in steps]


def test_views_over_time_add_up_to_the_funnel(
    two_weeks: Prometheus, came: list[Acknowledged]
) -> None:
    for found in figures("engagement", "Views over time", two_weeks):
        ((name, count),) = found.items()
        assert count == sum(counted(came, view(STEPS[name])).values())


def test_two_weeks_have_one_total_in_all_panels(two_weeks: Prometheus) -> None:
    def shown(title: str) -> list[Figures]:
        first_s, last_s = fortnight.FIRST_S, fortnight.VIEWED_S
        return [*figures("engagement", title, two_weeks, from_s=first_s, to_s=last_s)]

    leads, started, finished, *_ = shown("By source")
    assert shown("Leads over time") == shown("Leads by source") == [leads]
    views = {"Started": sum(started.values()), "Finished": sum(finished.values())}
    assert {
        name: count for each in shown("Views over time") for name, count in each.items()
    } == views
    assert [each[""] for each in shown("When leads come in")] == [sum(leads.values())]
    first, *_, last = shown("How far people watch")
    assert [*first.values(), *last.values()] == [*views.values()]


@pytest.mark.parametrize("name", viewer.NAMES)
def test_no_count_is_shortened(name: str) -> None:
    units = {
        panel["title"]: panel["fieldConfig"]["defaults"]["unit"]
        for panel in viewer.panels(viewer.read(name))
        if panel["type"] != "heatmap"
    }
    assert [title for title, unit in units.items() if unit == "short"] == []


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
@pytest.mark.parametrize("title", ["When people watch", "When leads come in"])
def test_hours_of_the_day_are_the_viewers_own_where_they_begin_at_a_quarter_too(
    two_weeks: Prometheus, came: list[Acknowledged], zone: tzinfo, title: str
) -> None:
    kind = VIDEO_WATCHED if title == "When people watch" else LEAD_CAPTURED

    def hour(each: Acknowledged) -> str | None:
        is_one = (each.arrival.kind, each.outcome) == (kind, "accepted")
        return datetime.fromtimestamp(each.minute_s, zone).strftime("%H") if is_one else None

    (panel,) = [each for each in viewer.panels(viewer.read("engagement")) if each["title"] == title]
    (asked,) = viewer.asks(panel, from_s=story.START_S, to_s=story.END_S - 1)
    (values,) = asked.answer(two_weeks).values()
    found = viewer.by_hour(panel, values, zone)
    assert {name: count for name, count in found.items() if count} == counted(came, hour)
    assert [*found] == [f"{hour:02}" for hour in range(24)]


def test_acknowledged_are_the_requests_that_were(
    two_weeks: Prometheus, seen: list[Acknowledged]
) -> None:
    (acknowledged,) = figures("relay", "Acknowledged", two_weeks)
    assert acknowledged == {"": len(seen)}
    (by_code,) = figures("relay", "Requests by answer", two_weeks)
    by_answer = counted(seen, lambda each: "202" if each.outcome == "accepted" else "200")
    assert {code: by_code[code] for code in ("200", "202")} == by_answer


def test_events_by_kind_are_those_that_came(
    two_weeks: Prometheus, seen: list[Acknowledged]
) -> None:
    new = [each for each in seen if each.outcome == "accepted"]
    views = [each for each in new if each.arrival.kind == VIDEO_WATCHED]
    others = [each for each in new if each.arrival.kind != VIDEO_WATCHED]
    assert [*figures("relay", "Views", two_weeks)] == [
        counted(views, lambda each: each.arrival.source)
    ]
    assert [*figures("relay", "Events other than views", two_weeks)] == [
        counted(others, lambda each: each.arrival.kind)
    ]


def test_requests_that_brought_no_new_event_are_those_that_did_not(
    two_weeks: Prometheus, seen: list[Acknowledged]
) -> None:
    odd = counted(seen, lambda each: each.outcome if each.outcome != "accepted" else None)
    assert [*figures("relay", "Duplicates and oddities", two_weeks)] == [odd]


def test_as_many_are_verified_as_acknowledged(
    two_weeks: Prometheus, seen: list[Acknowledged]
) -> None:
    verified, _ = figures("relay", "Verified, by secret", two_weeks)
    assert sum(verified.values()) == len(seen)


def test_as_many_tries_deliver_as_deliveries_end_well(two_weeks: Prometheus) -> None:
    ended, _ = figures("relay", "Deliveries that ended", two_weeks)
    (tries,) = figures("relay", "Tries by result", two_weeks)
    delivered = sum(count for name, count in ended.items() if name.endswith(": delivered"))
    assert tries["delivered"] == delivered > 1000
