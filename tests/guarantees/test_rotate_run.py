"""`relay rotate run` is killed at each of its steps, under load, and loses no event."""

import asyncio
import itertools
import signal
import sys
from collections import Counter
from pathlib import Path

import orjson
import pytest

from relay.core.clock import SystemClock
from relay.sandbox.model import Endpoint
from tests.guarantees.conftest import Say
from tests.guarantees.process import Relay, until
from tests.operator import ADMIN
from tests.sandbox.service import Served, serving
from tests.store.places import PostgresPlace
from tests.stub_server import StubServer

pytestmark = pytest.mark.long

KILLED = -signal.SIGKILL
EVERY_S = 0.1
SPEED = 20.0
"""The sender's waits last 31 s in all, and two runs of the command some seconds."""

RESUMED = ("rotates once more", "finishing it")

KILLER = """
import os, signal, sys
from relay.cli import main

FOLDER, NUMBER = sys.argv[1], int(sys.argv[2])
STEPS = {"open", "os.rename", "os.remove", "os.truncate", "socket.connect"}
seen = 0

def count(event, arguments):
    global seen
    if event not in STEPS or event != "socket.connect" and not touches(arguments[0]):
        return
    seen += 1
    if seen == NUMBER:
        os.kill(os.getpid(), signal.SIGKILL)

def touches(path):
    return isinstance(path, int) or str(path).startswith(FOLDER)

sys.addaudithook(count)
main(sys.argv[3:])
"""
"""Runs a command and kills it before its n-th step: a connection, or a change of a file."""

SINK = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "{}"\nevents = ["*", "webhook.test"]\n'


class Operator:
    """Runs `relay rotate run` in processes of their own."""

    def __init__(self, relay: Relay, folder: Path) -> None:
        self._command = ("rotate", "run", "--source", "main", "--config", str(relay.config))
        self._folder = folder

    async def run(self, *, kill_at: int = 0) -> tuple[int, str]:
        """Return the exit code and the output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", KILLER, str(self._folder), str(kill_at), *self._command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode()


async def publish(served: Served, stop: asyncio.Event) -> None:
    """Two events per video, as long as the test lasts."""
    while not stop.is_set():
        await served.add()
        await asyncio.sleep(EVERY_S)


def expected_of(served: Served) -> set[tuple[str, str]]:
    """Name what was published, by event and video."""
    videos = served.sandbox.workspace.videos
    return {(kind, video) for video in videos for kind in ("video.created", "video.ready")}


def told(crm: StubServer) -> Counter[tuple[str, str]]:
    """Count what the sink was sent, by event and video."""
    bodies = [orjson.loads(request.body) for request in crm.requests]
    return Counter((body["event"], body["data"]["id"]) for body in bodies)


async def installed(
    folder: Path, served: Served, *, crm: StubServer, store: str = 'min_free = "0B"'
) -> tuple[Relay, Endpoint, Path]:
    """Register the endpoint of a relay, and put its secret and its id into the config."""
    secret = folder / "secret"
    relay = Relay(folder.parent, sinks=SINK.format(crm.url()), store=store, secret=f"file:{secret}")
    record = await served.register(relay.url)
    endpoint = served.sandbox.workspace.endpoints[record["id"]]
    secret.write_text(f"{endpoint.secret}\n", encoding="utf-8")
    key = served.headers("Admin")["Authorization"].removeprefix("Bearer ")
    api = f'base_url = "{served.url}"\nkey = "{key}"\nendpoint = "{endpoint.id}"\n'
    text = relay.config.read_text(encoding="utf-8")
    relay.config.write_text(
        text.replace("[[sink]]", f"[source.api]\n{api}\n{ADMIN}\n[[sink]]"), encoding="utf-8"
    )
    return relay, endpoint, secret


async def test_one_run_rotates_for_all_relays_that_share_a_store_and_the_secrets_file(
    tmp_path: Path, postgres_place: PostgresPlace
) -> None:
    folder, elsewhere = tmp_path / "keys", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    dsn, schema = postgres_place.server.dsn, postgres_place.schema
    store = f'type = "postgres"\ndsn = "{dsn}"\nschema = "{schema}"'
    async with serving(clock=SystemClock(), speed=SPEED) as served, StubServer() as crm:
        relay, endpoint, secret = await installed(folder, served, crm=crm, store=store)
        other = Relay(elsewhere, sinks=SINK.format(crm.url()), store=store, secret=f"file:{secret}")
        endpoint.url = other.url
        async with relay, other:
            await relay.start()
            await other.start()
            stop = asyncio.Event()
            publishing = asyncio.create_task(publish(served, stop))
            before = endpoint.secret
            code, output = await Operator(relay, folder).run()
            assert (code, endpoint.secret == before) == (0, False), output
            rotated = len(served.sandbox.workspace.videos)
            await until(
                lambda: len(served.sandbox.workspace.videos) > rotated + 5, what="events afterwards"
            )
            stop.set()
            await publishing
            await until(lambda: not served.sandbox.workspace.outbox, what="the last attempt")
            expected = expected_of(served)
            await until(lambda: len(crm.requests) >= len(expected), what="all deliveries")
            assert await other.metric("relay_requests_total", code="202") > 0
    assert told(crm) == Counter(expected)


async def test_a_run_that_is_killed_anywhere_and_run_again_loses_nothing(
    tmp_path: Path, say: Say
) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    async with serving(clock=SystemClock(), speed=SPEED) as served, StubServer() as crm:
        relay, endpoint, secret = await installed(folder, served, crm=crm)
        operator = Operator(relay, folder)
        async with relay:
            await relay.start()
            stop, resumed = asyncio.Event(), Counter[str]()
            publishing = asyncio.create_task(publish(served, stop))
            for step in itertools.count(1):
                code, output = await operator.run(kill_at=step)
                if code == 0:
                    break
                assert code == KILLED, output
                code, output = await operator.run()
                assert code == 0, output
                resumed[
                    next((words for words in RESUMED if words in output), "from the start")
                ] += 1
                assert secret.read_text(encoding="utf-8") == f"{endpoint.secret}\n"
                assert [path.name for path in folder.iterdir()] == ["secret"]
            stop.set()
            await publishing
            await until(lambda: not served.sandbox.workspace.outbox, what="the last attempt")
            expected = expected_of(served)
            await until(lambda: len(crm.requests) >= len(expected), what="all deliveries")
    assert told(crm) == Counter(expected)
    assert set(resumed) == {*RESUMED, "from the start"}
    say(f"killed at {step - 1} steps under {len(expected)} events: {dict(resumed)}")
