"""A limit on the event loop, for all tests: a callback of the relay may take 25 ms of its thread.

Tests in which one took longer run again at the end of the run, by themselves, and the run fails for
those that exceed the limit each time: a busy machine is no fault of the code.
"""

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import orjson
import pytest

from tests.loop_watch import LIMIT_S, REPORT

_ALONE = "RELAY_LOOP_ALONE"
"""The variable with the file to which a run of suspects writes those that exceed it again."""
_TRIES = 2
"""Times that a test has to exceed it by itself."""


class Plugin:
    """Notes which tests exceed the limit, and runs these again at the end, by themselves."""

    def __init__(self, folder: Path) -> None:
        self._report = folder / "loop"
        self._suspects: dict[str, str] = {}
        """What has exceeded the limit, by the test."""
        os.environ[REPORT] = str(self._report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown" and self._report.exists():
            excesses = dict.fromkeys(self._report.read_text("utf-8").splitlines())
            self._report.unlink()
            report.user_properties.append((REPORT, "\n".join(excesses)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather them where the whole run is known, whichever worker ran the test."""
        properties = dict(report.user_properties)
        if REPORT in properties:
            self._suspects[report.nodeid] = str(properties[REPORT])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput") or not self._suspects:
            return
        if file := os.environ.get(_ALONE):
            Path(file).write_bytes(orjson.dumps(self._suspects))
            return
        for _ in range(_TRIES):
            self._suspects = self._run_alone(session.config.rootpath)
        if self._suspects:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _run_alone(self, folder: Path) -> dict[str, str]:
        if not self._suspects:
            return {}
        file = self._report.with_name("alone")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        if any(name.startswith("benchmarks") for name in self._suspects):
            command += ["-p", "tests.conftest"]
        with file.open("wb"):
            subprocess.run(
                [*command, *self._suspects],
                cwd=folder,
                env={**os.environ, _ALONE: str(file)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        return dict(orjson.loads(file.read_bytes() or b"{}"))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test, excesses in self._suspects.items():
            if _ALONE not in os.environ:
                terminalreporter.section(f"over {LIMIT_S * 1000:.0f} ms: {test}")
                terminalreporter.line(excesses)
