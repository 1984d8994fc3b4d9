"""Every benchmark runs, for a second or two and with small numbers; its figures mean nothing."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

FOLDER = Path(__file__).parent
ENDPOINTS = {"destination", "floor_endpoint", "store_endpoint"}
"""Modules that benchmarks start, and that nobody runs by hand."""

DEADLINE_S = 300.0
FLOOD = ("--rounds", "1", "--seconds", "1")


class Short(NamedTuple):
    """Arguments, and values of the module's constants, that make a run short."""

    arguments: tuple[str, ...] = ()
    constants: Mapping[str, Any] = MappingProxyType({})


SHORT = {
    "acknowledge": Short(FLOOD),
    "afternoon": Short((*FLOOD, "--kills", "1"), {"_ALIVE_S": 0.5, "_QUIET_S": 1.0}),
    "brokers": Short(("50", "redis"), {"TURNS": 1}),
    "deliver": Short(("200",), {"SECONDS": 1, "PLAIN_REQUESTS": 50, "PLAIN_SHAPES": ((1, 4),)}),
    "floor": Short(FLOOD, {"WARM_S": 0.2}),
    "ids": Short((*FLOOD, "--ids", "20000")),
    "isolation": Short(("1",), {"SECONDS": 1, "WARM_UP_S": 1}),
    "million": Short(("20000",), {"ROUNDS": 2}),
    "model": Short(),
    "pages": Short(("5000",), {"VIEWS": ("/", "/events"), "READS": 3, "TURNS": 2}),
    "postgres": Short(
        (
            *("acknowledge", "drain", "ids", "bloat", *FLOOD),
            *("--backlog", "3000", "--ids", "1000", "--settlements", "400"),
        )
    ),
    "processor": Short(FLOOD, {"WARM_S": 0.5}),
    "replay": Short(("2000",), {"SECONDS": 1}),
    "saturation": Short(FLOOD, {"SINKS": (1,), "STEPS": (50,), "PLAIN_SHAPES": ((1, 4),)}),
    "scale": Short(("1000",), {"SINKS": (1,), "SECONDS": 1, "SETTLE_S": 0, "READS": 1}),
    "service_times": Short(("--seconds", "1", "--backlog", "3000")),
    "soak": Short(("800",), {"WARM_S": 1}),
    "strangers": Short(("--connections", "20", "--seconds", "0.2")),
    "tails": Short((*FLOOD, "--rate", "200")),
}


def scripts() -> set[str]:
    files = {path.stem for path in FOLDER.glob("*.py") if "\ndef main(" in path.read_text()}
    return (files | {path.parent.name for path in FOLDER.glob("*/__main__.py")}) - ENDPOINTS


def test_each_script_has_a_short_run_here() -> None:
    assert scripts() <= SHORT.keys()


def test_the_readme_has_the_command_and_the_question_of_each_script() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert {
        *re.findall(r"^\.venv/bin/python -m benchmarks\.(\w+)", text, re.MULTILINE)
    } == scripts()
    assert {*re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)} == scripts()


@pytest.mark.servers
@pytest.mark.parametrize("name", sorted(scripts()))
def test_a_short_run_prints_its_figures(name: str) -> None:
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    module = f"benchmarks.{name}"
    if (FOLDER / name).is_dir():
        module += ".__main__"
    short = SHORT[name]
    values = (f"module.{name} = {value!r}" for name, value in short.constants.items())
    program = "\n".join([f"import {module} as module", *values, "module.main()"])
    done = subprocess.run(
        [sys.executable, "-c", program, *short.arguments],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d", done.stdout)
