"""`promtool test rules`: the shipped scenarios, and a scripted day made into one."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.deploy.incidents import SCRAPE_S, START_S
from tests.deploy.prometheus import FOLDER, RULES, require_prometheus
from tests.deploy.scripted_day import Scrape
from tests.deploy.tsdb import samples

SCENARIOS = sorted((FOLDER / "tests").glob("*.yml"))
"""Scenarios that fire each alert, in a folder beside the rules."""

_OF_THE_DAY = 'group by (alertname) (count_over_time(ALERTS{{alertstate="{state}"}}[1d]))'


def run(file: Path) -> str:
    """Promtool's complaints about a file of scenarios; empty if all is as expected."""
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)],
        # It has room (640 MiB for a day), and collecting garbage takes a quarter of its time.
        env={**os.environ, "GOGC": "1600"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    return "" if done.returncode == 0 else (done.stdout + done.stderr).decode()


def evaluate(
    file: Path, *, every: str, series: Mapping[str, str], checks: Sequence[dict[str, object]]
) -> str:
    """Promtool's complaints about results of queries on series that begin at 0."""
    require_prometheus()
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": every, "input_series": inputs, "promql_expr_test": [*checks]}
    file.write_text(json.dumps({"evaluation_interval": every, "tests": [test]}))
    return run(file)


def write(file: Path, scrapes: Iterable[Scrape], *, pending: set[str], firing: set[str]) -> None:
    """Make a scenario of a whole day; these alerts, and no others, come as far as that on it."""
    checks = [
        {
            "expr": _OF_THE_DAY.format(state=state),
            "eval_time": "1d",
            "exp_samples": [
                {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)
            ],
        }
        for state, names in (("pending", pending), ("firing", firing))
    ]
    document: dict[str, Any] = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{SCRAPE_S}s",
        "tests": [
            {
                "interval": f"{SCRAPE_S}s",
                "input_series": _series(scrapes),
                "promql_expr_test": checks,
            }
        ],
    }
    # Which is YAML as well.
    file.write_text(json.dumps(document))


def _series(scrapes: Iterable[Scrape]) -> list[dict[str, str]]:
    """A series that a scrape does not find is stale from then on, as Prometheus has it."""
    values: dict[str, list[str]] = {}
    for count, scrape in enumerate(scrapes):
        for head, value in samples(scrape):
            # promtool's clock starts at 0 with the first value.
            told = value - START_S - SCRAPE_S if value > START_S / 2 else value
            values.setdefault(head, ["_"] * count).append(f"{told:.9g}")
        for series in values.values():
            if len(series) == count:
                series.append("_" if series[-1] in ("_", "stale") else "stale")
    return [{"series": head, "values": " ".join(series)} for head, series in values.items()]
