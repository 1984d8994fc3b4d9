"""What a relay loads as it starts: the client of a sink type that is configured, and no other.

The clients are found by what the extras ask for and the core does not, so that no list can age.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from relay import sinks
from tests.guarantees.process import Relay

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE: list[str] = PROJECT["dependencies"]
EXTRAS: dict[str, list[str]] = {
    extra: wanted
    for extra, wanted in PROJECT["optional-dependencies"].items()
    if extra in sinks.names()
}

TAKEN_ALONG = {"attr", "attrs"}
"""structlog loads rich where that is installed, as for development, and rich takes these along."""

NAMES_OF_FIELDS = {
    "relay.video_service",
    "relay.video_service.api",
    "relay.video_service.api.fields",
}
"""Of the sender's API, a config is checked against the names of its fields."""

SELDOM_USED = {"difflib", "statistics", "zipfile", "zoneinfo"}
"""Modules of the standard library that most relays never need."""

HTTP_SINK = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "http://127.0.0.1:9/hook"\n'


def closure(wanted: Iterable[str]) -> set[str]:
    """Name the installed distributions that these requirements bring."""
    found: set[tuple[str, str]] = set()
    left = [Requirement(each) for each in wanted]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in found:
                found.add((name, extra))
                left += needs(name, extra)
    return {name for name, _ in found}


def needs(name: str, extra: str) -> list[Requirement]:
    try:
        asked = [Requirement(each) for each in distribution(name).requires or ()]
    except PackageNotFoundError:
        return []
    return [each for each in asked if each.marker is None or each.marker.evaluate({"extra": extra})]


owners_of_modules = cache(packages_distributions)


@cache
def foreign(extra: str) -> set[str]:
    """Name the modules that come with an extra and not with the core."""
    added = closure(EXTRAS[extra]) - closure(CORE)
    modules = {
        module
        for module, owners in owners_of_modules().items()
        if {canonicalize_name(owner) for owner in owners} & added
    }
    return modules - TAKEN_ALONG


def loaded(report: str) -> set[str]:
    """Read the top-level names out of what `-X importtime` writes."""
    names = re.findall(r"^import time: +\d+ \| +\d+ \| +([\w.]+)$", report, re.MULTILINE)
    assert "site" in names
    return {name.partition(".")[0] for name in names}


async def test_a_relay_without_queue_sinks_loads_none_of_their_clients(tmp_path: Path) -> None:
    relay = Relay(tmp_path, sinks=HTTP_SINK, environ={"PYTHONPROFILEIMPORTTIME": "1"})
    async with relay:
        await relay.start()
        await relay.stop()
    report = relay.log.read_text()
    of_sender = set(
        re.findall(r"\| +(relay\.(?:video_service|sandbox)\b[\w.]*)$", report, re.MULTILINE)
    )
    assert of_sender <= NAMES_OF_FIELDS
    found = loaded(report)
    assert {"relay", "httpx", "uvicorn"} <= found
    assert not found & SELDOM_USED
    assert {extra: found & foreign(extra) for extra in EXTRAS} == {extra: set() for extra in EXTRAS}


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_check_detects_a_loaded_client(extra: str) -> None:
    program = f"from relay import sinks; sinks.load({extra!r})"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program], check=True, capture_output=True
    )
    assert loaded(done.stderr.decode()) & foreign(extra)
