"""Which tests need real servers, in which order tests run, and what one worker has to itself."""

import os
import re
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling

T = TypeVar("T")

_HERE = Path(__file__).parent

_FOLDERS = {"brokers", "deploy", "guarantees"}
"""All of their tests need real servers or programs."""

_FIXTURES = {
    "server",
    "harness",
    "browser",
    "own_server",
    "guarded",
}
"""Fixtures that start a real server or program."""

_SLOW = re.compile(
    r"^tests/(admin/test_selecting|app/test_(enrichment|reload\w*)|core/cluster/test_simulation"
    r"|delivery/test_replayer|project/test_internals|receiver/test_(hostile_\w+|secret_rotation)"
    r"|sinks/((pubsub|sqs)/\w+|kafka/test_security|mqtt/test_(errors|silence))|sinks/slack/test_message"
    r"|sinks/test_(confirms|conformance|hostile_answers)"
    r"|store/(test_funnel|sqlite/test_(known_ids|page_slack|wal))|video_service/test_(api|enrichment))\.py"
)
"""Files whose tests together run as long as those with servers."""

_LONG_FOLDERS = ("admin/page/browser", "guarantees/cluster", "store/copying", "store/postgres")
_LONG_FILES = re.compile(
    r"^tests/(admin/page/test_(audience|bulk|changes|config|dead_letters|events?|frame|people)"
    r"|admin/page/test_(reconciliations|sink\w*)|core/cluster/test_planted_faults"
    r"|store/sqlite/test_ids_model|video_service/test_api_on_sandbox)\.py"
)
_LONG_FIXTURES = {"postgres_place", "pooled_place"}
"""Tests in these folders and files, or with PostgreSQL, are marked `long`."""

_LEFT_OUT = {"not servers": {*_FOLDERS, *_LONG_FOLDERS}, "not long": {*_LONG_FOLDERS}}
_MARKED = {
    "not servers": re.compile(r"^pytestmark = pytest\.mark\.(servers|long)$", re.MULTILINE),
    "not long": re.compile(r"^pytestmark = pytest\.mark\.long$", re.MULTILINE),
}
"""By the marks that are asked for: a file that has none of these tests."""

_SHARED = {"amqp", "sqs"}
"""Folders in which `destination` is a real server as well: one per process."""

_GROUPS = {
    "week": r"^tests/admin/page/browser/(test_views|journeys/test_(events|people))\.py",
    "browser": r"^tests/admin/page/browser/",
    "image": r"^tests/deploy/test_(image|compose|compose_runs)\.py",
    "day": r"^tests/deploy/test_(dashboards|panel_values|runbook|scripted_day)\.py",
    "amqp": r"^tests/sinks/.*(amqp|rabbitmq)",
    "sqs": r"^tests/sinks/.*sqs",
    # Kafka's client waits a lot, so that one worker can do it beside the others.
    "kafka": r"^tests/sinks/test_.*\[kafka",
}
"""What shares something expensive is run by one worker; the first match counts."""

_APART = re.compile(
    r"^(benchmarks|tests/(brokers|guarantees|sinks/test_|deploy/test_(alerts|prox(ies|y_re))))"
)
"""Tests that take long and share nothing; all others are handed out by the file."""

_FIRST = [
    *("image", "week", "browser", "amqp", "day", "kafka", "guarantees", "deploy", "brokers", "sqs"),
    "tests/sinks/kafka/test_apache_kafka.py",
    *("tests/admin/test_api_document.py", "tests/sandbox/test_api.py"),
    *("tests/reconciliation/test_outages.py", "tests/core/cluster/test_simulation.py"),
    *("tests/store/postgres/test_ownership.py", "tests/sinks/kafka/test_batches.py"),
    *("tests/sinks/kafka/test_sink.py", "tests/sinks/mqtt/test_errors.py"),
    *("tests/cli/test_demo.py", "tests/cli/test_stdio.py", "tests/delivery/test_poison.py"),
    "store",
]
"""Groups, folders and files that take or wait longest start first, so that none is at the end."""


_RANKS = {name: rank for rank, name in enumerate(_FIRST)}


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out groups; the marker `xdist_group` has no effect with pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def scope(nodeid: str) -> str:
    """Return the group of tests that one worker runs together with this one."""
    for group, pattern in _GROUPS.items():
        if re.search(pattern, nodeid, re.IGNORECASE):
            return group
    return nodeid if _APART.match(nodeid) else nodeid.partition("::")[0]


def workers() -> int:
    """Count three for each core, because many tests wait for a server or for a time to pass."""
    return 3 * len(os.sched_getaffinity(0))


def is_left_out(path: Path, expression: str) -> bool:
    """Whether the marks that are asked for leave out a whole folder or file, not to be imported."""
    if expression not in _LEFT_OUT or not path.is_relative_to(_HERE):
        return False
    if path.relative_to(_HERE).as_posix() in _LEFT_OUT[expression]:
        return True
    if _LONG_FILES.match(f"tests/{path.relative_to(_HERE).as_posix()}"):
        return True
    is_test = path.suffix == ".py" and path.name.startswith("test_")
    return is_test and _MARKED[expression].search(path.read_text("utf-8")) is not None


def from_own_part(folders: list[T]) -> list[T]:
    """Let each worker begin elsewhere, so that in a fresh clone each compiles a part of the tests.

    All of them would compile all at once: `prepare` sorts the tests.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    begin = len(folders) * int(worker) // count
    return [*folders[begin:], *folders[:begin]]


def prepare(items: list[pytest.Item]) -> None:
    """Mark tests that need a server or take long, and sort by `_FIRST`."""
    for item in items:
        fixtures = {*item.fixturenames} if isinstance(item, pytest.Function) else set()
        is_placed = _is_in_long_folder(item.path) or _LONG_FILES.match(item.nodeid)
        if is_placed or fixtures & _LONG_FIXTURES:
            item.add_marker("long")
        is_long = item.get_closest_marker("long") is not None
        shares = item.path.parent.name in _SHARED and "destination" in fixtures
        starts = _SLOW.match(item.nodeid) or fixtures & _FIXTURES or _folder(item) in _FOLDERS
        if is_long or shares or starts:
            item.add_marker("servers")
    items.sort(key=_rank)


@cache
def _is_in_long_folder(path: Path) -> bool:
    return any(path.is_relative_to(_HERE / folder) for folder in _LONG_FOLDERS)


def _rank(item: pytest.Item) -> tuple[int, str]:
    ranks = (_RANKS.get(name, len(_FIRST)) for name in (scope(item.nodeid), _folder(item)))
    return min(ranks), str(item.path)


def _folder(item: pytest.Item) -> str:
    return _folder_of(item.path)


@cache
def _folder_of(path: Path) -> str:
    """Name the folder below `tests`; a test of a test may lie elsewhere."""
    return path.relative_to(_HERE).parts[0] if path.is_relative_to(_HERE) else ""
