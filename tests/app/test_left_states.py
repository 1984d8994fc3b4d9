"""A relay that begins goes on from the states in which its sinks were left, on both engines."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from relay.admin.page.text.formats import iso
from relay.cli import main, output
from relay.config import Config
from relay.core.config_values import Duration
from relay.core.retry import FAILURE_THRESHOLD, Refusals
from relay.core.sink_status import SinkStatus
from relay.store.postgres.store import PostgresStore
from relay.store.sqlite.store import SqliteStore
from tests import service
from tests.admin.page.visiting import visiting
from tests.app import cluster
from tests.app.cluster import SALES
from tests.caller import post
from tests.guarantees.process import until
from tests.operator import ADMIN, TOKEN, operating
from tests.service import SINK, Relay, serving
from tests.store.places import Place, PostgresPlace, ReusedPlace, SqlitePlace
from tests.stub_server import Reply, StubServer

LOST = FAILURE_THRESHOLD - 1
QUARTER_MS = 16 * 60_000
EVENTS = 12
WHAT = f"sink {SALES} is "


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield SqlitePlace(tmp_path)
        return
    reused = ReusedPlace()
    yield reused
    reused.drop()


def configured(folder: Path, place: Place, destination: StubServer) -> Config:
    if isinstance(place, PostgresPlace):
        return cluster.settings(folder, place, destination)
    sink = SINK.format(name=SALES, url=destination.url("/"), more="")
    return service.read(folder, tables=ADMIN + sink)


def condition(relay: Relay) -> SinkStatus:
    return relay.service.supervisor.statuses()[SALES]


async def dead(relay: Relay) -> int:
    return int((await relay.service._store.backlogs())[SALES].dead)


async def send(relay: Relay, first: int, count: int) -> None:
    for number in range(first, first + count):
        body = orjson.dumps({"id": f"evt_{number}", "event": "lead.captured", "data": {}})
        assert (await relay.ask(post(body))).status == 202


async def until_left(relay: Relay, state: str) -> int:
    """Wait until the state is recorded; return since when."""
    found: list[int] = []

    async def is_recorded() -> bool:
        left = (await relay.service._store.sink_states.left((SALES,))).get(SALES)
        if left is not None and left.state == state:
            found.append(left.since_ms)
        return bool(found)

    await until(is_recorded, what=f"a recorded {state}")
    return found[-1]


def age(place: Place) -> None:
    """Let all recorded states be older."""
    place.rows("UPDATE relay.sink_states SET at = at - %s", QUARTER_MS)


async def problem(relay: Relay, state: str) -> dict[str, Any]:
    async with operating(relay) as operator:
        problems = (await operator.get("/status"))["problems"]
    return next(each for each in problems if each["what"] == WHAT + state)


async def command(relay: Relay, *arguments: str) -> str:
    where = ("--url", relay.service.admin.url, "--token", TOKEN)
    done = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, *where])
    assert done.exit_code == 1, done.output
    return done.stdout


@pytest.mark.parametrize(("code", "state"), [(422, "parked"), (503, "throttled")])
async def test_a_restart_keeps_a_state_its_beginning_and_its_threshold(
    tmp_path: Path, place: Place, code: int, state: str, destination: StubServer
) -> None:
    destination.reply = lambda _: Reply(code)
    settings = configured(tmp_path, place, destination)
    async with serving(settings) as relay:
        await send(relay, 0, EVENTS)
        await until(lambda: condition(relay).state == state, what=f"a {state} sink")
        began_ms = condition(relay).since_ms
        recorded_ms = await until_left(relay, state)
        assert began_ms is not None
        assert 0 <= recorded_ms - began_ms < 6_000
        severity = (await problem(relay, state))["severity"]
        assert severity == ("ticket" if state == "parked" else "info")
    age(place)
    for _ in range(2):
        async with serving(settings) as relay:
            tries = len(destination.requests)
            await until(
                lambda before=tries: len(destination.requests) > before,  # type: ignore[misc]
                what="a probe",
            )
            status = condition(relay)
            assert (status.state, status.since_ms) == (state, recorded_ms - QUARTER_MS)
            assert (await problem(relay, state))["severity"] == "ticket"
            assert await dead(relay) == (LOST if code == 422 else 0)
            assert (status.refusals == Refusals(None)) == (code == 422)


async def test_all_views_say_the_same_since(tmp_path: Path, place: Place) -> None:
    async with StubServer() as destination:
        destination.reply = lambda _: Reply(422)
        settings = configured(tmp_path, place, destination)
        async with serving(settings) as relay:
            await send(relay, 0, EVENTS)
            since_ms = await until_left(relay, "parked") - QUARTER_MS
        age(place)
        async with serving(settings) as relay:
            await until(lambda: condition(relay).state == "parked", what="a parked sink")
            found = await problem(relay, "parked")
            status = await command(relay, "status", "--json")
            text = await command(relay, "status")
            async with visiting(relay) as visitor:
                page = await visitor.see(f"/sinks/{SALES}")
            metric = await relay.counts("relay_sink_state_timestamp_seconds")
            assert condition(relay).since_ms == since_ms
            assert found["since_ms"] == since_ms
            (sink,) = orjson.loads(status)["sinks"]
            assert sink["condition"]["since_ms"] == since_ms
            assert f"since {output.moment(since_ms)}, 16 min ago" in text
            assert page.by_id("state").all("time")[0]["datetime"] == iso(since_ms)
            assert metric[(SALES,)] == since_ms / 1000


async def test_a_pause_of_a_parked_sink_does_not_make_a_restart_forget_its_refusals(
    tmp_path: Path, place: Place, destination: StubServer
) -> None:
    destination.reply = lambda _: Reply(422)
    settings = configured(tmp_path, place, destination)
    async with serving(settings) as relay:
        await send(relay, 0, EVENTS)
        await until_left(relay, "parked")
        await relay.service.supervisor.pause(SALES)
        await until_left(relay, "paused")
    async with serving(settings) as relay:
        await until(lambda: condition(relay).state == "paused", what="a paused sink")
        tries = len(destination.requests)
        await relay.service.supervisor.resume(SALES)
        await until(lambda: condition(relay).state == "parked", what="a parked sink")
        assert len(destination.requests) > tries
        assert await dead(relay) == LOST


async def test_a_sink_that_begins_does_not_wait_for_operators_reads(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch, destination: StubServer
) -> None:
    async def read_for_ever(*_: object) -> None:
        await asyncio.Event().wait()

    destination.reply = lambda _: Reply(422)
    async with serving(configured(tmp_path, place, destination)) as relay:
        await until(lambda: not condition(relay).is_elsewhere, what="an owner")
        await send(relay, 0, EVENTS)
        recorded_ms = await until_left(relay, "parked")
        supervisor, store = relay.service.supervisor, relay.service._store
        await supervisor.end(SALES, grace=Duration.parse("5s"))
        assert isinstance(store, SqliteStore | PostgresStore)
        for operators in (store._shared.reader, store._shared.searcher, store._shared.pager):
            monkeypatch.setattr(operators, "read", read_for_ever)
        tries = len(destination.requests)
        await asyncio.wait_for(supervisor.begin(SALES), 30)
        await until(lambda: len(destination.requests) > tries, what="a probe")
        status = condition(relay)
        monkeypatch.undo()
        assert (status.state, status.since_ms) == ("parked", recorded_ms)
        assert status.refusals == Refusals(None)
        assert await dead(relay) == LOST
