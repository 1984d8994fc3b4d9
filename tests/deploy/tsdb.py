"""The scripted day as Prometheus' own blocks: what its scrapes would have left on disk."""

import math
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from relay.telemetry.metrics import Metrics
from tests.deploy.incidents import END_S, SCRAPE_S, START_S
from tests.deploy.prometheus import JOB, Prometheus, rules
from tests.deploy.scripted_day import Scrape, ScriptedDay

INSTANCE = "relay:9464"

_BLOCKS = "54h"
"""Long, because promtool reads its file again for each block; it takes 2 h times powers of 3."""

Point = tuple[int, str, float]
"""Unix seconds, the series as it is written, its value."""


def write(folder: Path) -> None:
    """Write the day's blocks, and those of its recording rules, into a data folder."""
    folder.mkdir()
    write_points(folder, _scraped())
    with Prometheus(data=folder) as server:
        recorded = sorted(_recorded(server))
    write_points(folder, recorded)


def _scraped() -> Iterator[Point]:
    for scrape in ScriptedDay().scrapes():
        for head, value in samples(scrape):
            yield scrape.at_s, head, value


def write_points(folder: Path, points: Iterable[Point]) -> None:
    """Write points, ordered by time, as blocks into a data folder."""
    file = folder.with_suffix(".openmetrics")
    with file.open("w", encoding="utf-8") as text:
        text.writelines(f"{head} {value} {at_s}\n" for at_s, head, value in points)
        text.write("# EOF\n")
    # It reads all blocks of the folder for each that it prints.
    how = ("--quiet", f"--max-block-duration={_BLOCKS}")
    done = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", *how, "openmetrics", str(file), str(folder)],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    file.unlink()


def _recorded(server: Prometheus) -> Iterator[Point]:
    """Recorded values of the rules; promtool's own backfill makes twenty times as many blocks."""
    for rule in rules("record"):
        found = server.ask_range(rule["expr"], from_s=START_S, to_s=END_S, step_s=SCRAPE_S)
        for labels, values in found.items():
            head = series_of({**dict(labels), "__name__": rule["record"]})
            yield from ((int(at_s), head, value) for at_s, value in values)


def samples(scrape: Scrape) -> Iterator[tuple[str, float]]:
    """Every series with the labels that Prometheus adds, and its value."""
    yield _head("up"), float(scrape.metrics is not None)
    if scrape.metrics is None:
        # A backfill cannot say that a series has ended, and this one silences RelayDown.
        yield _head("relay_members", state="live"), math.nan
        return
    for sample in _of_process():
        yield _head(sample.name, **sample.labels), _process_value(sample, scrape)
    # Not through the text, which takes ten times as long to make and says the same.
    for family in scrape.metrics._registry.collect():
        for sample in family.samples:
            yield _head(sample.name, **sample.labels), float(sample.value)


def _process_value(sample: Sample, scrape: Scrape) -> float:
    """Replace values of the test's own process by those of a relay of this age."""
    age_s = scrape.at_s - scrape.started_s
    told: dict[str, float] = {
        "process_cpu_seconds_total": 0.7 + 0.009 * age_s,
        "process_resident_memory_bytes": (58 << 20) + 300 * min(age_s, 36_000),
        "process_virtual_memory_bytes": 420 << 20,
        "process_open_fds": 31 + scrape.at_s // 60 % 5,
    }
    return told.get(sample.name, sample.value)


@cache
def _of_process() -> tuple[Sample, ...]:
    """Metrics of the process and of Python in an exposition."""
    text = Metrics([], []).exposition("")[0].decode()
    return tuple(
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith("relay_")
    )


@cache
def _head(name: str, **labels: str) -> str:
    return series_of({"__name__": name, **labels, "instance": INSTANCE, "job": JOB})


def series_of(labels: Mapping[str, str]) -> str:
    """Write a series as OpenMetrics does."""
    pairs = (f'{key}="{value}"' for key, value in labels.items() if key != "__name__")
    return f"{labels['__name__']}{{{','.join(pairs)}}}"
