"""A real relay on free ports for tests, with all that can be seen of it from outside."""

import asyncio
import contextlib
import io
import logging
import sys
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from relay import config
from relay.app.service import ProcessHooks, Service
from relay.core.clock import Clock
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.settings import SqliteSettings
from relay.telemetry import log
from tests.caller import PATIENCE_S, SECRET, Answer, Caller
from tests.stub_server import StubServer, until

OTHER_SECRET = "the-secret-of-another-source"
ENVIRON = {"RELAY_SECRET": SECRET, "OTHER_SECRET": OTHER_SECRET}

DOCUMENT = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
{server}

[store]
path = "{folder}/relay.db"
min_free = "{min_free}"

[[source]]
name = "main"
path = "/webhooks"
secrets = ["env:RELAY_SECRET"]

{tables}
"""

SINK = """
[[sink]]
name = "{name}"
type = "http"
url = "{url}"
{more}
"""


def store_file(settings: config.Config) -> Path:
    """Return the file of a store on SQLite."""
    assert isinstance(settings.store, SqliteSettings)
    return Path(settings.store.path)


class ShiftedClock:
    """The machine's clock, as far off as a test wants it."""

    def __init__(self) -> None:
        self.shift_s = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.shift_s * 1000

    def monotonic(self) -> float:
        return time.monotonic()


class Relay:
    """A running service with everything that can be seen of it from outside."""

    def __init__(self, service: Service, settings: config.Config, *, errors: io.BytesIO) -> None:
        self.service = service
        self._settings = settings
        self._errors = errors

    async def call(self) -> Caller:
        return Caller(*await asyncio.open_connection("127.0.0.1", self.service.public.port))

    async def ask(self, data: bytes, *, bodiless: bool = False) -> Answer:
        """One request on a connection of its own."""
        async with await self.call() as caller:
            return await caller.ask(data, bodiless=bodiless)

    async def counts(self, name: str) -> dict[tuple[str, ...], float]:
        """The series of a metric that are not 0, by their labels' values in alphabetical order."""
        lines = (await self.metrics()).splitlines()
        # Parsing all of them takes longer than most tests.
        text = "".join(f"{line}\n" for line in lines if line.startswith(name))
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and sample.value
        }

    async def metrics(self) -> str:
        port = self.service.admin.port
        async with Caller(*await asyncio.open_connection("127.0.0.1", port)) as caller:
            answer = await caller.ask(b"GET /metrics HTTP/1.1\r\nHost: relay\r\n\r\n")
        return answer.body.decode()

    async def until_counted(self, name: str, *labels: str, value: float = 1) -> None:
        """Wait for a metric; the labels are in the order of `counts`."""
        async with asyncio.timeout(PATIENCE_S):
            while (await self.counts(name)).get(labels, 0) < value:
                await asyncio.sleep(0.01)
        assert (await self.counts(name))[labels] == value

    def _reading(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{store_file(self._settings)}?mode=ro", uri=True)

    def stored(self, table: str = "events") -> int:
        """How many rows are on disk for other readers to see."""
        with contextlib.closing(self._reading()) as db:
            return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def heads(self) -> bytes:
        """The heads of all events, as they are kept."""
        with contextlib.closing(self._reading()) as db:
            return b"".join(head for (head,) in db.execute("SELECT headers FROM events"))

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        lines = [orjson.loads(line) for line in self._errors.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    async def assert_refused(self, reason: str, code: int, *, source: str = "main") -> None:
        """One refusal was counted under its reason and code, and nothing was stored."""
        assert await self.counts("relay_rejected_total") == {(reason, source): 1}
        assert await self.counts("relay_requests_total") == {(str(code), source): 1}
        assert (self.stored(), self.stored("unreadable")) == (0, 0)
        assert await self.counts("relay_events_total") == {}
        (line,) = self.lines("request.refused")
        assert (line["source"], line["reason"], line["code"]) == (source, reason, code)

    @property
    def log(self) -> str:
        return self._errors.getvalue().decode()


@contextlib.contextmanager
def logging_to_memory() -> Iterator[io.BytesIO]:
    """The log as the process would have it, on a stderr that can be read."""
    stderr = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    root, showwarning = logging.getLogger(), warnings.showwarning
    handlers, level = root.handlers, root.level
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        log.configure(log.LogSettings())
    try:
        assert isinstance(stderr.buffer, io.BytesIO)
        yield stderr.buffer
    finally:
        root.handlers, warnings.showwarning = handlers, showwarning
        root.setLevel(level)
        structlog.reset_defaults()


def read(
    folder: Path,
    *,
    server: str = "",
    min_free: str = "1MiB",
    tables: str = "",
    destination: StubServer | None = None,
) -> config.Config:
    """Load the config of the tests: one source, and a sink for all, for leads, and for tests."""
    if destination is not None:
        tables += "".join(
            SINK.format(name=name, url=destination.url(f"/{name}"), more=more)
            for name, more in (
                ("all", ""),
                ("leads", 'events = ["lead.captured"]'),
                ("tests", 'events = ["webhook.test"]'),
            )
        )
    file = folder / "config.toml"
    file.write_text(
        DOCUMENT.format(folder=folder, server=server, min_free=min_free, tables=tables),
        encoding="utf-8",
    )
    return config.load(file, ENVIRON)


@contextlib.asynccontextmanager
async def serving(settings: config.Config, *, clock: Clock | None = None) -> AsyncIterator[Relay]:
    """Run a relay until the block ends, then drain it; fails where the relay fails."""
    with logging_to_memory() as errors:
        service = await Service.open(
            settings, clock=clock or ShiftedClock(), host=ProcessHooks(environ=ENVIRON)
        )
        stop, ready = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(service.run(stop, ready=ready.set))
        try:
            await until(lambda: ready.is_set() or running.done(), what="the relay's readiness")
            yield Relay(service, settings, errors=errors)
        finally:
            stop.set()
            await running
