"""Ranges of days of the audience."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from relay.admin.page.views.audience.range import AudienceForm, days_of, zone_names

NOW = datetime(2026, 3, 30, 22, 30, tzinfo=UTC)
"""The day after the clocks of Berlin were put forward, where it is the 31st."""
NOW_MS = round(NOW.timestamp() * 1000)
BERLIN = ZoneInfo("Europe/Berlin")


def ms(day: int, zone: ZoneInfo | None = None, month: int = 3) -> int:
    return round(datetime(2026, month, day, tzinfo=zone or UTC).timestamp() * 1000)


def test_a_period_ends_with_today_in_its_zone() -> None:
    assert days_of(AudienceForm(period="today"), NOW_MS).times == {
        "since_ms": ms(30),
        "until_ms": ms(31),
    }
    assert days_of(AudienceForm(period="7d", zone="Europe/Berlin"), NOW_MS).times == {
        "since_ms": ms(25, BERLIN),
        "until_ms": ms(1, BERLIN, month=4),
    }
    assert days_of(AudienceForm(period="all"), NOW_MS).times == {"since_ms": None, "until_ms": None}


def test_dates_replace_the_period_and_the_last_is_whole() -> None:
    form = AudienceForm(period="today", since=date(2026, 3, 28), zone="Europe/Berlin")
    assert days_of(form, NOW_MS).times == {"since_ms": ms(28, BERLIN), "until_ms": None}
    form = AudienceForm(until=date(2026, 3, 29), zone="Europe/Berlin")
    assert days_of(form, NOW_MS).times == {"since_ms": None, "until_ms": ms(30, BERLIN)}


@pytest.mark.parametrize(
    ("form", "oldest", "shown"),
    [
        (AudienceForm(period="all"), "2026-03-28", ["2026-03-28", "2026-03-29", "2026-03-30"]),
        (AudienceForm(period="all"), None, ["2026-03-30"]),
        (AudienceForm(period="all"), "2020-01-01", [f"2026-03-{day}" for day in range(27, 31)]),
        (AudienceForm(since=date(2026, 3, 29)), "2026-03-30", ["2026-03-29", "2026-03-30"]),
        (AudienceForm(since=date(2026, 4, 5)), None, []),
        (AudienceForm(until=date(2027, 1, 1)), "2026-03-30", ["2026-03-30"]),
        (AudienceForm(until=date(2026, 3, 2)), "2026-03-02", ["2026-03-02"]),
    ],
)
def test_days_are_shown_without_gaps(
    form: AudienceForm, oldest: str | None, shown: list[str]
) -> None:
    assert days_of(form, NOW_MS).shown(oldest, limit=4) == shown


def test_zones_are_offered_by_their_usual_names() -> None:
    names = zone_names()
    assert names[0] == "UTC"
    assert {"Europe/Berlin", "Asia/Kolkata", "America/Argentina/Ushuaia"} <= set(names)
    assert "Etc/GMT+5" not in names
