"""Which tests need real servers, in which order tests run, and what one worker has to itself."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

_HERE = Path(__file__).parent

_FOLDERS = {"brokers", "deploy", "guarantees"}
"""All of their tests need real servers or programs."""

_FIXTURES = {"server", "harness"}
"""Fixtures that start a real server; in the folder of a broker that is shared, `far_end` too."""

_SHARED = {"amqp", "sqs"}
"""Sink types with one server per process: one worker runs all of their tests."""

_GROUPS = {
    **dict.fromkeys(("debian", "builder"), "image"),
    "scripted_day": "day",
    "systemd": "systemd",
    "watched": "watched",
}
"""Fixtures that are expensive to set up: one worker runs all tests that use one of a group."""

_FIRST = ["image", "amqp", "day", "guarantees", "deploy", "brokers"]
"""What takes longest starts first, so that no worker is left alone with it."""


def workers(arguments: Sequence[str]) -> int:
    """Count two per core, because most tests wait; none where only files or tests are named."""
    if all(".py" in argument for argument in arguments):
        return 0
    return 2 * len(os.sched_getaffinity(0))


def prepare(items: list[pytest.Item]) -> None:
    """Mark tests that need a server, group those that share one, and sort by `_FIRST`."""
    for item in items:
        fixtures = {*item.fixturenames} if isinstance(item, pytest.Function) else set()
        kind = item.path.parent.name
        shares = kind in _SHARED and bool(fixtures & {*_FIXTURES, "far_end"})
        if shares or fixtures & _FIXTURES or _folder(item) in _FOLDERS:
            item.add_marker("servers")
        groups = {_GROUPS[name] for name in fixtures & {*_GROUPS}} | ({kind} if shares else set())
        for group in groups:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    names = {mark.args[0] for mark in item.iter_markers("xdist_group")} | {_folder(item)}
    return min((_FIRST.index(name) for name in names & {*_FIRST}), default=len(_FIRST))


def _folder(item: pytest.Item) -> str:
    """Name the folder below `tests`; a test of a test may lie elsewhere."""
    return item.path.relative_to(_HERE).parts[0] if item.path.is_relative_to(_HERE) else ""
