"""Exact counts of the dashboards' queries over restarts, gaps and new series.

promtool answers the queries from series that are made for them, with a scrape every 15 s.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from deploy.grafana import queries
from tests.deploy import dashboards, rule_tests
from tests.deploy.prometheus import CONFIG

LEADS = "relay_leads_captured_total{RELAY}"
REQUESTS = "relay_requests_total{RELAY}"

FROM_S, TO_S, BAR_S = 600, 1200, 300
"""Scrapes 41 to 80, in total and in two bars."""

Count = Callable[..., str]
Scrapes = Sequence[int | None]
"""A counter's value at each scrape; None for a failed scrape."""

AWAY: list[int | None] = [None]

GOES_ON: dict[str, tuple[list[Scrapes], int]] = {
    "nothing comes": ([[100] * 81], 0),
    "one every minute": ([[100 + scrape // 4 for scrape in range(81)]], 10),
    "most come after the last scrape before a restart": (
        [[100] * 60 + [105] + AWAY * 3 + [125] * 17],
        25,
    ),
    "it is away at the end": ([[100] * 45 + [110] * 10 + AWAY * 26], 10),
    "it is away at the beginning": ([[100] * 30 + AWAY * 20 + [107] * 31], 7),
    "it is away from one bar to the next": ([[100] * 50 + AWAY * 20 + [103] * 11], 3),
    "its series begins": ([AWAY * 50 + [40] * 10 + [45] * 21], 5),
    "there are two, and one is away at the end": (
        [[100 + scrape // 4 for scrape in range(81)], [7] * 50 + [10] * 5 + AWAY * 26],
        13,
    ),
    "another store takes the place of the first": ([[100] * 60 + [3] * 10 + [8] * 11], 5),
}
"""Scrapes of a counter that continues over restarts, for each relay, and the count."""

RESTARTS: dict[str, tuple[list[Scrapes], int]] = {
    "nothing comes": ([[100] * 81], 0),
    "one every minute": ([[100 + scrape // 4 for scrape in range(81)]], 10),
    "it restarts": ([[100] * 45 + [106] * 15 + [2] * 5 + [5] * 16], 11),
    "it restarts between two bars": ([[100] * 60 + [4] * 21], 4),
    "it restarts twice": ([[100] * 45 + [1] * 10 + [0] * 5 + [2] * 21], 3),
    "scrapes fail": ([[100] * 45 + AWAY * 3 + [104] * 33], 4),
    "it is away and restarts": ([[100] * 45 + [105] * 3 + AWAY * 20 + [3] * 13], 8),
    "there are two, and one restarts": (
        [[100 + scrape // 4 for scrape in range(81)], [50] * 60 + [6] * 21],
        16,
    ),
}
"""Scrapes of a counter that restarts at 0 with the relay, and the count."""


def written(scrapes: Scrapes) -> str:
    """Write values as promtool reads them; a failed scrape ends the series, as in Prometheus."""
    before = [None, *scrapes]
    gone = ("_" if earlier is None else "stale" for earlier in before)
    return " ".join(
        absent if value is None else str(value)
        for absent, value in zip(gone, scrapes, strict=False)
    )


def asked(expr: str, *, at_s: int, count: int) -> dict[str, object]:
    expr = dashboards.filled(queries.expanded(expr), range_s=TO_S - FROM_S, step_s=BAR_S)
    samples = [{"labels": "{}", "value": count}]
    return {"expr": expr, "eval_time": f"{at_s}s", "exp_samples": samples}


def faults(
    file: Path,
    metric: str,
    relays: list[Scrapes],
    checks: Sequence[dict[str, object]],
    *,
    apart: bool = True,
) -> str:
    """Promtool's complaints about relays that are apart, or share a store."""
    name = metric.removesuffix("{RELAY}")
    labels = 'job="relay",namespace="{}",instance="relay"' if apart else 'job="relay",instance="{}"'
    heads = (f"{name}{{{labels.format(place)}}}" for place in range(len(relays)))
    series = dict(zip(heads, map(written, relays), strict=True))
    return rule_tests.evaluate(file, every="15s", series=series, checks=checks)


def both_bars(expr: str) -> str:
    """Add up what a panel's two bars show, at the second one's time."""
    return f"sum_over_time(({expr})[{TO_S - FROM_S - 1}s:{BAR_S}s])"


COUNTS: dict[str, tuple[str, Count, Count]] = {
    "goes on": (LEADS, queries.grown, queries.grown_in_each_bar),
    "restarts": (REQUESTS, queries.counted, queries.counted_in_each_bar),
}
CASES = [("goes on", each) for each in GOES_ON] + [("restarts", each) for each in RESTARTS]


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_a_counter_is_counted_exactly_in_total_and_in_bars(
    tmp_path: Path, kind: str, case: str
) -> None:
    metric, in_all, in_bars = COUNTS[kind]
    relays, count = (GOES_ON if kind == "goes on" else RESTARTS)[case]
    checks = (
        asked(in_all(metric), at_s=TO_S, count=count),
        asked(both_bars(in_bars(metric)), at_s=TO_S - BAR_S, count=count),
    )
    assert faults(tmp_path / "test.yml", metric, relays, checks) == ""


MEMBERS: dict[str, list[Scrapes]] = {
    "both stay": [[100 + scrape // 4 for scrape in range(81)]] * 2,
    "one lags behind the other": [
        [100 + scrape // 4 for scrape in range(81)],
        [100] + [100 + scrape // 4 for scrape in range(80)],
    ],
    "one goes and a new one comes": [
        [100 + scrape // 4 for scrape in range(81)],
        [100 + scrape // 4 for scrape in range(50)] + AWAY * 31,
        AWAY * 55 + [100 + scrape // 4 for scrape in range(55, 81)],
    ],
    "each is replaced": [
        [100 + scrape // 4 for scrape in range(50)] + AWAY * 31,
        AWAY * 48 + [100 + scrape // 4 for scrape in range(48, 81)],
    ],
}
"""Scrapes of relays that share a store, into which 10 come."""


@pytest.mark.parametrize("case", MEMBERS)
def test_a_total_that_several_relays_share_is_counted_once(tmp_path: Path, case: str) -> None:
    checks = (
        asked(queries.grown(LEADS), at_s=TO_S, count=10),
        asked(both_bars(queries.grown_in_each_bar(LEADS)), at_s=TO_S - BAR_S, count=10),
    )
    file = tmp_path / "test.yml"
    assert faults(file, LEADS, MEMBERS[case], checks, apart=False) == ""


def test_the_week_before_is_counted_exactly(tmp_path: Path) -> None:
    week = 7 * 86_400
    relays: list[Scrapes] = [[100] * 45 + [110] * 36]
    check = asked(queries.grown_a_week_ago(LEADS), at_s=TO_S + week, count=10)
    assert faults(tmp_path / "test.yml", LEADS, relays, [check]) == ""


def test_counts_step_at_the_scrape_interval() -> None:
    assert f"scrape_interval: {queries.SCRAPED}\n" in CONFIG.read_text(encoding="utf-8")
