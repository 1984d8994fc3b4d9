"""A benchmark's surroundings: a relay, a bare endpoint, destinations, the machine's description."""

import contextlib
import json
import os
import platform
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from relay.store.postgres.settings import PostgresSettings
from relay.store.sqlite.settings import SqliteSettings
from tests.ports import free_port

Settings = PostgresSettings | SqliteSettings

SECRET = "benchmark-secret-of-no-value"
TOKEN = "benchmark-token-of-no-value-either"
START_S = 30.0
ANSWER_S = 120.0

_CONFIG = """
[server]
listen = "127.0.0.1:{listen}"
admin_listen = "127.0.0.1:{admin}"
{store}
[admin]
token = "{token}"
[log]
level = "error"
[[source]]
name = "main"
path = "/webhooks"
secrets = ["{secret}"]
"""


def sink(name: str, kind: str, **keys: object) -> str:
    """A `[[sink]]` table; JSON's strings, numbers and lists are TOML's too."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"type": kind, **keys}.items()]
    return "\n".join(["[[sink]]", f"name = {json.dumps(name)}", *lines, ""])


def _store(settings: Settings) -> str:
    match settings:
        case PostgresSettings(dsn=dsn, schema=schema):
            keys = {"type": settings.type, "dsn": dsn.reveal(), "schema": schema}
        case SqliteSettings(path=path):
            keys = {"path": path}
    return "\n".join(["[store]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())])


def http_sink(port: int) -> str:
    return sink(f"sink{port}", "http", url=f"http://127.0.0.1:{port}/hook")


class Relay:
    """A relay of its own folder and ports; `sinks` are the tables of its destinations.

    Its store is a file in the folder, unless one is given.
    """

    def __init__(
        self, folder: Path, sinks: list[str], store: PostgresSettings | None = None
    ) -> None:
        self.listen, self._admin = free_port(), free_port()
        self.database = folder / "relay.db"
        self.store: PostgresSettings | SqliteSettings = store or SqliteSettings(
            path=str(self.database)
        )
        self._config = folder / "config.toml"
        text = _CONFIG.format(
            listen=self.listen,
            admin=self._admin,
            store=_store(self.store),
            secret=SECRET,
            token=TOKEN,
        ) + "".join(sinks)
        self._config.write_text(text, encoding="utf-8")

    @contextlib.contextmanager
    def running(self) -> Iterator["Running"]:
        """Run it; the value knows how many seconds it took to be ready."""
        command = ["-m", "relay", "serve", "--config", str(self._config)]
        started = time.perf_counter()
        with _process(command) as process:
            _wait(f"http://127.0.0.1:{self._admin}/readyz")
            yield Running(self._admin, process, time.perf_counter() - started)


class Running:
    """A relay's process seen from outside."""

    def __init__(self, admin: int, process: subprocess.Popen[bytes], start_s: float) -> None:
        self._admin = admin
        self._pid = process.pid
        self.start_s = start_s
        self.kill = process.kill

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self._admin}"

    def metric(self, line: str) -> float:
        """The sum of all series whose line begins so."""
        text = httpx.get(f"http://127.0.0.1:{self._admin}/metrics", trust_env=False).text
        return sum(
            float(row.rsplit(" ", 1)[1]) for row in text.splitlines() if row.startswith(line)
        )

    def histogram(self, name: str) -> dict[float, float]:
        """Return the cumulative counts of all series together, by their upper bounds."""
        text = httpx.get(f"{self.admin_url}/metrics", trust_env=False).text
        counts: dict[float, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == f"{name}_bucket":
                    bound = float(sample.labels["le"])
                    counts[bound] = counts.get(bound, 0) + sample.value
        return counts

    def processor_s(self) -> float:
        """Return the processor time of all threads so far."""
        return processor_s(self._pid)

    def get(self, path: str) -> Any:
        """Ask the admin API."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: object) -> Any:
        """Have the admin API do something."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: object) -> Any:
        url = f"http://127.0.0.1:{self._admin}/api/v1{path}"
        headers = {"authorization": f"Bearer {TOKEN}"}
        answer = httpx.request(
            method, url, json=body, headers=headers, trust_env=False, timeout=ANSWER_S
        )
        answer.raise_for_status()
        return answer.json()

    def resident_mib(self) -> float:
        return self._status_mib("VmRSS")

    def peak_mib(self) -> float:
        """Return the most that was ever resident."""
        return self._status_mib("VmHWM")

    def _status_mib(self, name: str) -> float:
        status = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii")
        kib = next(row.split()[1] for row in status.splitlines() if row.startswith(name))
        return int(kib) / 1024


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far, with that of the children it has reaped."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split())]


@contextlib.contextmanager
def destination(kind: str, port: int, *arguments: str) -> Iterator[None]:
    """Run one of `benchmarks.destination`'s apps on a port."""
    with server("benchmarks.destination", [kind, str(port), *arguments], port):
        yield


@contextlib.contextmanager
def server(module: str, arguments: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module that answers requests on a port."""
    with _process(["-m", module, *arguments]) as process:
        _wait(f"http://127.0.0.1:{port}/")
        yield process


def received(port: int) -> int:
    """Return the number of requests that the sink on a port has had."""
    return int(httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).text)


def until(condition: Callable[[], bool], *, seconds: float) -> None:
    """Wait for a condition, and end the benchmark if it does not come in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not done within {seconds:.0f} s")
        time.sleep(0.05)


def machine() -> str:
    """One line on where the figures come from."""
    cpu = "unknown processor"
    with contextlib.suppress(OSError, StopIteration):
        rows = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(row.partition(":")[2].strip() for row in rows if row.startswith("model name"))
    return (
        f"{os.cpu_count()} cores, {cpu}, {platform.system()} {platform.release()}, "
        f"CPython {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    )


def table(rows: list[tuple[str, ...]]) -> None:
    """Print columns, the first row as their head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *command])
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str) -> None:
    deadline = time.monotonic() + START_S
    # One client: each makes a TLS context, which takes longer than the pause.
    with httpx.Client(trust_env=False) as client:
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                if client.get(url).is_success:
                    return
            time.sleep(0.01)
    raise TimeoutError(f"{url} did not answer")
