"""`relay events tail` on a running relay."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.guarantees.process import DEADLINE_S, Relay, until
from tests.guarantees.traffic import lead, post
from tests.operator import ADMIN
from tests.stub_server import Reply, StubServer

pytestmark = pytest.mark.servers

_SINK = '[[sink]]\nname = "{name}"\ntype = "http"\nurl = "{url}"\nretry.first = "1s"\n'


class Tail:
    """Reads the lines of `events tail --json`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def take(self, count: int) -> list[dict[str, Any]]:
        assert self._process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            return [json.loads(await self._process.stdout.readline()) for _ in range(count)]

    async def until(self, what: str, event_id: str) -> list[dict[str, Any]]:
        """Return the activities up to this one."""
        lines = await self.take(1)
        while (lines[-1]["what"], lines[-1].get("id")) != (what, event_id):
            lines += await self.take(1)
        return lines


@contextlib.asynccontextmanager
async def tailing(relay: Relay, *options: str) -> AsyncIterator[Tail]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "relay", "events", "tail", "--json"),
        *("--config", str(relay.config), *options),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield Tail(process)
    finally:
        process.kill()
        await process.communicate()


@contextlib.asynccontextmanager
async def running(
    folder: Path, destination: StubServer, names: Iterable[str]
) -> AsyncIterator[Relay]:
    sinks = "".join(_SINK.format(name=name, url=destination.url(f"/{name}")) for name in names)
    async with Relay(folder, sinks=sinks, rest=ADMIN) as relay:
        await relay.start()
        yield relay


async def test_the_first_failed_attempt_is_shown_in_detail(tmp_path: Path) -> None:
    async with StubServer() as destination, running(tmp_path, destination, ["crm"]) as relay:
        destination.reply = lambda _: Reply(500)
        await post(relay.url, lead("a"))
        await until(lambda: len(destination.requests) > 0, what="a try")
        async with tailing(relay, "--since", "1h") as tail:
            accepted, tried = await tail.take(2)
    assert (accepted["what"], accepted["id"], accepted["sinks"]) == ("accepted", "a", ["crm"])
    fields = {name: tried[name] for name in ("what", "sink", "id", "status", "reason")}
    assert fields == {
        "what": "retry",
        "sink": "crm",
        "id": "a",
        "status": 500,
        "reason": "500: the destination has a fault",
    }
    assert tried["duration_ms"] >= 0
    assert tried["at"].endswith("Z")
    assert accepted["at"] <= tried["at"]


async def test_stored_and_live_activity_meet_without_gap_or_duplicate(
    tmp_path: Path, destination: StubServer
) -> None:
    async with running(tmp_path, destination, ["crm", "billing"]) as relay:
        ids = [f"e{number}" for number in range(150)]

        async def send() -> None:
            for event_id in ids:
                await post(relay.url, lead(event_id))

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            await until(lambda: len(destination.requests) > 40, what="some deliveries")
            async with tailing(relay, "--since", "1h") as tail:
                lines = await tail.take(3 * len(ids))
    activities = [(line["what"], line.get("sink"), line["id"]) for line in lines]
    expected: set[tuple[str, str | None, str]] = {("accepted", None, event_id) for event_id in ids}
    expected |= {("delivered", sink, event_id) for sink in ("crm", "billing") for event_id in ids}
    assert len(activities) == len(set(activities))
    assert set(activities) == expected


async def test_only_matching_activity_is_shown(tmp_path: Path, destination: StubServer) -> None:
    async with running(tmp_path, destination, ["crm", "billing"]) as relay:
        await post(relay.url, lead("a"))
        await until(lambda: len(destination.requests) == 2, what="both deliveries")
        async with tailing(relay, "--since", "1h", "--sink", "crm", "--event", "lead.*") as tail:
            first = await tail.until("delivered", "a")
            await post(relay.url, lead("b"))
            then = await tail.until("delivered", "b")
        async with tailing(relay, "--since", "1h", "--event", "video.*") as tail:
            await post(relay.url, lead("c").replace(b"lead.captured", b"video.ready"))
            (only,) = await tail.take(1)
    assert [line["what"] for line in (*first, *then)] == ["accepted", "delivered"] * 2
    assert {line["sink"] for line in (*first, *then) if line["what"] == "delivered"} == {"crm"}
    assert only["id"] == "c"


async def test_it_goes_on_after_a_restart_without_gap_or_duplicate(tmp_path: Path) -> None:
    async with (
        StubServer() as destination,
        running(tmp_path, destination, ["crm"]) as relay,
        tailing(relay, "--since", "1h", "--event", "lead.*") as tail,
    ):
        await post(relay.url, lead("a"))
        lines = await tail.until("delivered", "a")
        await relay.kill()
        await relay.start()
        await post(relay.url, lead("b"))
        lines += await tail.until("delivered", "b")
    named = [(line["what"], line["id"]) for line in lines]
    assert named == [("accepted", "a"), ("delivered", "a"), ("accepted", "b"), ("delivered", "b")]


async def test_it_ends_with_its_reader_although_nothing_happens(tmp_path: Path) -> None:
    async with StubServer() as destination, running(tmp_path, destination, ["crm"]) as relay:
        reading, writing = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "relay", "events", "tail", "--since", "1h"),
            *("--config", str(relay.config)),
            stdout=writing,
            stderr=asyncio.subprocess.PIPE,
        )
        os.close(writing)
        await post(relay.url, lead("a"))
        with os.fdopen(reading) as output:
            assert "accepted" in await asyncio.to_thread(output.readline)
        async with asyncio.timeout(DEADLINE_S):
            _, stderr = await process.communicate()
    assert (process.returncode, stderr) == (1, b"")


async def test_an_unknown_sink_is_an_error(tmp_path: Path, destination: StubServer) -> None:
    async with running(tmp_path, destination, ["crm"]) as relay:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "relay", "events", "tail", "--sink", "crmm"),
            *("--config", str(relay.config)),
            stderr=asyncio.subprocess.PIPE,
        )
        _, stderr = await process.communicate()
    assert process.returncode == 1
    assert b"Unknown sink crmm; did you mean crm? Known: crm." in stderr
