"""A running relay with some events, as in the operators' documentation."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
from click.testing import CliRunner, Result

from relay.cli import main
from relay.core import signature
from tests.guarantees.ledger import pending
from tests.guarantees.process import SECRET, Relay, http_client, until
from tests.operator import ADMIN
from tests.stub_server import Reply, StubServer

_SINK = '[[sink]]\nname = "{name}"\ntype = "http"\nurl = "{url}"\n'
_EVENTS = (
    ("evt_1001", "video.ready", {"id": "vid_42", "title": "Product tour", "status": "ready"}),
    ("evt_1002", "lead.captured", {"email": "ada@example.com", "video": {"id": "vid_42"}}),
    (
        "evt_1003",
        "video.watched",
        {"video": {"id": "vid_42"}, "viewer": {"email": "ada@example.com"}, "milestone": "50%"},
    ),
)
_COLUMNS = re.compile(r" {2,}|\t")
_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)"), "<time>"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "<time>"),
    (re.compile(r"^\d+ +(?=<time> +[a-z]+_)"), "<change> "),
    (re.compile(r"--before \d+"), "--before <number>"),
    (re.compile(r"evt_test_\d+"), "evt_test_<number>"),
    (re.compile(r"\b(\d+ (s|min|h|d) ago|now)\b"), "<age>"),
    (re.compile(r"\bin \d+ (s|min|h|d)\b"), "<soon>"),
    (re.compile(r"\b\d+ ms\b"), "<ms>"),
    (re.compile(r"[\d.]+ [KMGT]iB"), "<size>"),
    (re.compile(r"^/\S+/(?=data/relay\.db: )"), ""),
)


def plain(line: str) -> str:
    """Return a line without the parts that differ between runs."""
    for pattern, name in _VARYING:
        line = pattern.sub(name, line)
    return _COLUMNS.sub(" ", line.strip())


class Scene:
    """Runs commands in a folder with the running relay's config."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def run(self, command: str) -> list[str]:
        """Return the output of a command, standard error included."""
        return (await self.invoke(command)).output.splitlines()

    async def invoke(self, command: str) -> Result:
        """Run a command in this process: a start of its own takes longer than most commands do."""
        runner = CliRunner(env={"COLUMNS": "200", "RELAY_CONFIG": None})
        with contextlib.chdir(self._folder):
            done = await asyncio.to_thread(runner.invoke, main, command.split(), prog_name="relay")
        assert isinstance(done.exception, SystemExit | None), done.exception
        return done


@contextlib.asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Scene]:
    """Two sinks: `crm` takes every event, `billing` only video.watched."""
    async with StubServer() as destination:
        destination.reply = lambda request: Reply(
            422 if request.target == "/billing" and b"video.watched" not in request.body else 200
        )
        sinks = "".join(
            _SINK.format(name=name, url=destination.url(f"/{name}")) for name in ("crm", "billing")
        )
        async with Relay(folder, sinks=sinks, rest=ADMIN) as relay:
            await relay.start()
            async with http_client() as client:
                for event_id, kind, data in _EVENTS:
                    body = orjson.dumps({"id": event_id, "event": kind, "data": data})
                    head = {"service-signature": signed(body)}
                    assert (await client.post(relay.url, content=body, headers=head)).is_success
            await until(
                lambda: len(destination.requests) == 2 * len(_EVENTS), what="all deliveries"
            )
            await until(lambda: not pending(relay.store), what="all outcomes on disk")
            destination.reply = lambda _: Reply()
            scene = Scene(folder)
            # Views are counted some time after their acceptance; a report waits for it.
            await scene.invoke("audience")
            yield scene


def signed(body: bytes) -> str:
    return signature.header(SECRET.encode(), now_s=int(time.time()), body=body)
