"""A real Prometheus on loopback, on a data folder or on the shipped scrape config."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import yaml

from tests.guarantees.process import DEADLINE_S
from tests.ports import free_port

JOB = "relay"
FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES = FOLDER / "rules.yml"
CONFIG = FOLDER / "prometheus.yml"

Labels = tuple[tuple[str, str], ...]


class Prometheus:
    """Runs within its block; errors of the API fail the test."""

    def __init__(self, *, data: Path, config: Path | None = None) -> None:
        """Without a config it scrapes nothing and has no rules."""
        self._data = data
        self._config = config
        self._port = free_port()
        self._log = data.with_name(f"{data.name}.log")
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(base_url=self.url, trust_env=False, timeout=DEADLINE_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        config = self._config
        if config is None:
            config = self._data.with_name("empty.yml")
            config.write_text("{}\n")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._data}",
                    # The scripted day lies in the past.
                    "--storage.tsdb.retention.time=100y",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                    # As Compose has it, for the runbook.
                    f"--web.external-url={self.url}/",
                    f"--web.user-assets={FOLDER / 'assets'}",
                    "--log.level=warn",
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "GOMAXPROCS": "2"},
            )
        try:
            self.until(self._is_ready, what="Prometheus' readiness")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._client.close()
        self._process.terminate()
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, query: str, *, at_s: float | None = None) -> dict[Labels, float]:
        """The value of each series at an instant (Unix seconds; now unless given)."""
        found = self.get("/query", query=query, **({} if at_s is None else {"time": at_s}))
        if found["resultType"] == "scalar":
            return {(): float(found["result"][1])}
        return {_labels(each["metric"]): float(each["value"][1]) for each in found["result"]}

    def ask_range(
        self, query: str, *, from_s: float, to_s: float, step_s: float
    ) -> dict[Labels, list[tuple[float, float]]]:
        """The values of each series with their times."""
        found = self.get("/query_range", query=query, start=from_s, end=to_s, step=step_s)
        return {
            _labels(each["metric"]): [(at_s, float(value)) for at_s, value in each["values"]]
            for each in found["result"]
        }

    def get(self, path: str, **parameters: str | float) -> Any:
        """The `data` of an answer of its API."""
        answer = self._client.get(f"/api/v1{path}", params=parameters)
        assert answer.is_success, f"{parameters}: {answer.text}"
        return answer.json()["data"]

    def until(self, fact: Callable[[], bool], *, what: str) -> None:
        """Wait for a condition; fails with `what` after a deadline."""
        end_s = time.monotonic() + 2 * DEADLINE_S
        while not fact():
            assert time.monotonic() < end_s, f"never came: {what}\n{self.output()}"
            time.sleep(0.05)

    def output(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.output()
        try:
            return self._client.get("/-/ready").is_success
        except httpx.TransportError:
            return False


def require_prometheus() -> None:
    """Skip the test where Debian's package is not installed; promtool comes with it."""
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def rules(kind: str) -> list[dict[str, Any]]:
    """The shipped rules of a kind: `alert` or `record`."""
    return [rule for group in _groups() for rule in group["rules"] if kind in rule]


@cache
def _groups() -> list[dict[str, Any]]:
    """Read them once, because many modules of tests ask for them as they are imported."""
    groups: list[dict[str, Any]] = yaml.load(RULES.read_bytes(), yaml.CSafeLoader)["groups"]
    return groups


def _labels(metric: dict[str, str]) -> Labels:
    return tuple(sorted(metric.items()))
