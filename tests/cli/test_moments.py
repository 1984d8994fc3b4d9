"""Parsing of moments in a zone other than UTC."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from relay.cli.output import moment
from relay.cli.parameters import parse_duration, parse_moment, parse_moment_at

NOW = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)
"""02:30 of the same day in the zone of these tests."""


@pytest.fixture(autouse=True)
def bogota(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/Bogota")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-11-22T09:30Z"),
        ("7d", "2026-11-15T09:30Z"),
        ("1h30m", "2026-11-22T08:00Z"),
        ("90s", "2026-11-22T09:28:30Z"),
        ("today", "2026-11-22T05:00Z"),
        ("yesterday", "2026-11-21T05:00Z"),
        ("yesterday 11:18", "2026-11-21T16:18Z"),
        ("today 23:50", "2026-11-23T04:50Z"),
        ("1:05", "2026-11-22T06:05Z"),
        ("4:30:10", "2026-11-21T09:30:10Z"),
        ("23:50", "2026-11-22T04:50Z"),
        ("1795339800", "2026-11-22T09:30Z"),
        ("1795339800.25", "2026-11-22T09:30:00.250Z"),
        ("1795339800123", "2026-11-22T09:30:00.123Z"),
        ("2026-11-02", "2026-11-02T05:00Z"),
        ("2026-11-02T09:30", "2026-11-02T14:30Z"),
        ("2026-11-02 09:30:15", "2026-11-02T14:30:15Z"),
        ("2026-11-02T09:30Z", "2026-11-02T09:30Z"),
        ("2026-11-02T09:30+05:30", "2026-11-02T04:00Z"),
        (" 7d ", "2026-11-15T09:30Z"),
    ],
)
def test_a_moment_is_parsed_in_every_form(text: str, meant: str) -> None:
    now = NOW.astimezone()
    assert parse_moment_at(text, now=now) == datetime.fromisoformat(meant).timestamp() * 1000


@pytest.mark.parametrize(
    "text", ["", "soon", "5", "25:00", "1h30", "-1h", "99999999999d", "9" * 40, "2026-13-01"]
)
def test_an_invalid_moment_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(ValueError, match='"yesterday", a time of day'):
        parse_moment(text)


def test_a_duration_may_have_several_parts() -> None:
    assert parse_duration("1h30m") == 5_400_000
    assert parse_duration("90s") == 90_000
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration("1h30")


def test_a_printed_moment_has_its_offset_and_can_be_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert moment(1_795_339_800_000) == "2026-11-22T04:30:00-05:00"
    assert parse_moment(moment(1_795_339_800_000)) == 1_795_339_800_000
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert moment(1_795_339_800_000) == "2026-11-22T09:30:00Z"


@pytest.mark.parametrize("ms", [9_007_199_254_740_991, 253_402_318_740_000, 0])
def test_a_moment_beyond_the_calendar_is_printed_as_its_end(ms: int) -> None:
    assert moment(ms)[:4] in ("1970", "9998", "9999")
