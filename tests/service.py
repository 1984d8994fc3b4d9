"""A real relay on free ports for tests, and a caller that sends it requests byte by byte."""

import asyncio
import contextlib
import io
import logging
import sys
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from relay import config, log, signature
from relay.clock import Clock
from relay.service import Service
from relay.store.driver import sqlite3
from tests.sinks.far_end import FarEnd

SECRET = "the-secret-of-the-tests"  # noqa: S105
OTHER_SECRET = "the-secret-of-another-source"  # noqa: S105
ENVIRON = {"RELAY_SECRET": SECRET, "OTHER_SECRET": OTHER_SECRET}
PATH = "/webhooks"
PATIENCE_S = 5.0

ALLOWED = frozenset({200, 202, 400, 401, 404, 405, 408, 413, 503})
"""Every status that a caller may ever see; 400 is the server's own, for what is not HTTP."""

DOCUMENT = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
{server}

[store]
path = "{folder}/relay.db"
min_free = "1MiB"
{store}

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


class ShiftedClock:
    """The machine's clock, as far off as a test wants it."""

    def __init__(self) -> None:
        self.shift_s = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.shift_s * 1000

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:  # noqa: ANN401
        return orjson.loads(self.body)


class Caller:
    """One connection; whatever is answered on it is one of the allowed statuses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def leave(self) -> None:
        self._writer.close()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def ask(self, data: bytes, *, bodiless: bool = False) -> Answer:
        self.write(data)
        return await self.answer(bodiless=bodiless)

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """Read one answer; `bodiless` is for what HEAD is told."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head[:-4].split("\r\n")
            status = int(first.split(" ")[1])
            headers = dict(line.lower().split(": ", 1) for line in lines)
            length = 0 if bodiless else int(headers.get("content-length", "0"))
            body = await self._reader.readexactly(length)
            if "content-length" not in headers and status not in (100, 204):
                body = await self._reader.read()
        assert status in ALLOWED | {100}, first
        assert "location" not in headers
        return Answer(status, headers, body)

    async def is_closed(self) -> bool:
        """Whether the relay hangs up within the patience, and has nothing more to say."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._reader.read() == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


class Relay:
    """A running service with everything that can be seen of it from outside."""

    def __init__(self, service: Service, path: Path, *, errors: io.BytesIO) -> None:
        self.service = service
        self._path = path
        self._errors = errors

    async def call(self) -> Caller:
        return Caller(*await asyncio.open_connection("127.0.0.1", self.service.public.port))

    async def ask(self, data: bytes, *, bodiless: bool = False) -> Answer:
        """One request on a connection of its own."""
        async with await self.call() as caller:
            return await caller.ask(data, bodiless=bodiless)

    async def counts(self, name: str) -> dict[tuple[str, ...], float]:
        """The series of a metric that are not 0, by the values of their labels in alphabetical order."""
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(await self.metrics())
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
            while (await self.counts(name)).get(labels, 0) < value:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await self.counts(name))[labels] == value

    def stored(self, table: str = "events") -> int:
        """How many rows are on disk for other readers to see."""
        with contextlib.closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as db:
            return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        lines = [orjson.loads(line) for line in self._errors.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

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
    folder: Path, *, server: str = "", store: str = "", tables: str = "", far_end: FarEnd | None = None
) -> config.Config:
    """Load the config of the tests: one source, and a sink for all, for leads, and for tests."""
    if far_end is not None:
        tables += "".join(
            SINK.format(name=name, url=far_end.url(f"/{name}"), more=more)
            for name, more in (
                ("all", ""),
                ("leads", 'events = ["lead.captured"]'),
                ("tests", 'events = ["webhook.test"]'),
            )
        )
    file = folder / "config.toml"
    file.write_text(
        DOCUMENT.format(folder=folder, server=server, store=store, tables=tables), encoding="utf-8"
    )
    return config.load(file, ENVIRON)


@contextlib.asynccontextmanager
async def serving(settings: config.Config, *, clock: Clock | None = None) -> AsyncIterator[Relay]:
    """Run a relay until the block ends, then drain it; fails where the relay fails."""
    with logging_to_memory() as errors:
        service = await Service.open(settings, clock=clock or ShiftedClock())
        stop, ready = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(service.run(stop, ready=ready.set))
            async with asyncio.timeout(PATIENCE_S):
                await ready.wait()
            try:
                yield Relay(service, Path(settings.store.path), errors=errors)
            finally:
                stop.set()


def now_s() -> int:
    return int(time.time())


def signed(body: bytes, *, secret: str = SECRET, at_s: int | None = None) -> str:
    """The header value that the sender would make now, or at another time."""
    at_s = now_s() if at_s is None else at_s
    return signature.header(secret.encode(), now_s=at_s, body=body)


def post(
    body: bytes, *header: tuple[str, str | bytes], target: str = PATH, sign: bool = True
) -> bytes:
    """A whole request; signed as the sender would do it unless told otherwise."""
    lines = [("Host", "relay"), ("Content-Length", str(len(body))), *header]
    if sign:
        lines.append(("Service-Signature", signed(body)))
    return head("POST", target, *lines) + body


def head(method: str, target: str, *header: tuple[str, str | bytes]) -> bytes:
    """A request's head, exactly as given."""
    lines = [
        name.encode() + b": " + (value if isinstance(value, bytes) else value.encode())
        for name, value in header
    ]
    return b"\r\n".join([f"{method} {target} HTTP/1.1".encode(), *lines, b"", b""])


