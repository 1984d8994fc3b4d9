"""The status of a running relay: its problems and their facts."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from relay.app import maintenance, sink_history
from relay.store.sink_states import StateSpan
from relay.store.sqlite.store import SqliteStore
from relay.telemetry.traffic import SKEWS_MIN
from tests import service
from tests.app.reloading import Party, body, party, sink
from tests.caller import now_s, post, signed
from tests.operator import ADMIN, Operator, operating
from tests.service import Relay, ShiftedClock
from tests.stub_server import Reply, StubServer, until

HOUR_S = 3600


async def found(operator: Operator) -> dict[str, dict[str, Any]]:
    """Return the problems by their `what`."""
    return {each["what"]: each for each in (await operator.get("/status"))["problems"]}


async def until_found(operator: Operator, what: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while what not in (problems := await found(operator)):
            await asyncio.sleep(0.01)
    return problems[what]


@contextlib.asynccontextmanager
async def delivering(folder: Path, status: int) -> AsyncIterator[Party]:
    """A relay whose sink `crm` answers with a status."""
    async with StubServer() as destination:
        destination.reply = lambda _: Reply(status)
        async with party(folder, sink("crm", destination.url())) as running:
            yield running


async def test_an_idle_relay_is_well(tmp_path: Path) -> None:
    async with delivering(tmp_path, 200) as running:
        await running.send("evt_1")
        await running.relay.until_counted("relay_deliveries_total", "delivered", "crm")
        status = await running.operator.get("/status")
    assert (status["well"], status["problems"]) == (True, [])
    (crm,) = status["sinks"]
    assert (crm["name"], crm["condition"]["state"], crm["dead"]) == ("crm", "active", 0)
    assert status["started_ms"] - 1000 <= crm["condition"]["since_ms"] <= status["now_ms"]
    (main,) = status["sources"]
    assert [each["kind"] for each in main["last_events"]] == ["lead.captured"]
    assert main["traffic"]["verified_ms"] <= status["now_ms"]
    assert status["store"]["disk"]["free_bytes"] > status["store"]["disk"]["min_free_bytes"]
    assert status["last_reload"] is None


async def test_a_parked_sink_needs_an_operator_and_has_since_and_why(tmp_path: Path) -> None:
    async with delivering(tmp_path, 401) as running:
        await running.send("evt_1")
        problem = await until_found(running.operator, "sink crm is parked")
        status = await running.operator.get("/status")
    assert (problem["severity"], problem["next"]) == ("ticket", "relay sinks test crm")
    assert problem["why"].startswith("401")
    assert "1 pending" in problem["why"]
    assert problem["since_ms"] == status["sinks"][0]["condition"]["since_ms"]
    assert status["started_ms"] <= problem["since_ms"] <= status["now_ms"]
    assert not status["well"]


async def test_dead_letters_need_an_operator(tmp_path: Path) -> None:
    async with delivering(tmp_path, 422) as running:
        await running.send("evt_1", "evt_2")
        problem = await until_found(running.operator, "sink crm has 2 dead letters")
    assert problem["why"].startswith("422")
    assert problem["since_ms"] is not None


async def test_the_pause_time_of_a_sink_survives_a_restart(tmp_path: Path) -> None:
    clock = ShiftedClock()
    settings = service.read(tmp_path, tables=ADMIN + sink("crm", "http://127.0.0.1:9/"))
    async with service.serving(settings, clock=clock) as relay, operating(relay) as operator:
        await operator.post("/sinks/crm/pause")
        before = (await found(operator))["sink crm is paused"]
    clock.shift_s = 49 * HOUR_S
    async with service.serving(settings, clock=clock) as relay, operating(relay) as operator:
        assert (await found(operator))["sink crm is paused"] == before
        assert before["severity"] == "info"
        await relay.ask(post(body("evt_1"), ("Service-Signature", _later(clock)), sign=False))
        after = (await found(operator))["sink crm is paused"]
    assert (after["severity"], after["since_ms"]) == ("ticket", before["since_ms"])


@pytest.mark.parametrize(("code", "state"), [(401, "parked"), (503, "throttled")])
async def test_the_time_of_a_state_survives_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, state: str
) -> None:
    monkeypatch.setattr(sink_history, "COMPARE_EVERY_S", 0.01)
    monkeypatch.setattr(maintenance, "HEARTBEAT_EVERY_S", 0.01)
    clock, events = ShiftedClock(), [f"evt_{number}" for number in range(6)]
    async with StubServer() as destination:
        destination.reply = lambda _: Reply(code)
        settings = service.read(tmp_path, tables=ADMIN + sink("crm", destination.url()))
        async with service.serving(settings, clock=clock) as relay, operating(relay) as operator:
            for each in events:
                await relay.ask(post(body(each)))
            before = await until_found(operator, f"sink crm is {state}")
            while not (span := await _last_span(relay)) or span.state != state:
                await asyncio.sleep(0.01)
            recorded_ms = clock.now_ms()
            while (await operator.get("/status"))["store"]["alive_ms"] <= recorded_ms:
                await asyncio.sleep(0.01)
        for _ in range(2):
            clock.shift_s += HOUR_S
            async with (
                service.serving(settings, clock=clock) as relay,
                operating(relay) as operator,
            ):
                tries = len(destination.requests)
                await until(lambda n=tries: len(destination.requests) > n, what="a probe")  # type: ignore[misc]
                after = await until_found(operator, f"sink crm is {state}")
                assert 0 <= after["since_ms"] - before["since_ms"] < 60_000
                assert after["severity"] == "ticket"
        destination.reply = lambda _: Reply()
        async with service.serving(settings, clock=clock) as relay, operating(relay) as operator:
            await relay.until_counted("relay_deliveries_total", "delivered", "crm", value=6)
            assert f"sink crm is {state}" not in await found(operator)


async def _last_span(relay: Relay) -> StateSpan | None:
    return (await relay.service._store.sink_states.since(0)).get("crm", [None])[-1]


def _later(clock: ShiftedClock) -> str:
    return signed(body("evt_1"), at_s=now_s() + clock.shift_s)


async def test_the_last_event_of_each_kind_is_known_after_a_restart(tmp_path: Path) -> None:
    settings = service.read(tmp_path, tables=ADMIN)
    async with service.serving(settings) as relay, operating(relay) as operator:
        assert (await relay.ask(post(body("evt_1")))).status == 202
        (before,) = (await operator.get("/status"))["sources"]
    async with service.serving(settings) as relay, operating(relay) as operator:
        (after,) = (await operator.get("/status"))["sources"]
    assert [each["kind"] for each in after["last_events"]] == ["lead.captured"]
    assert after["last_events"] == before["last_events"]


async def test_a_backlog_without_a_sink_is_reported(tmp_path: Path) -> None:
    async with delivering(tmp_path, 503) as running:
        await running.send("evt_1")
        await running.reload()
        problem = await until_found(
            running.operator, "events wait for sink crm, which is not in the config"
        )
        (gone,) = (await running.operator.get("/status"))["sinks"]
    assert problem["since_ms"] == gone["oldest_pending_ms"]
    assert (gone["name"], gone["condition"], gone["pending"]) == ("crm", None, 1)


async def test_a_refused_config_is_a_problem_until_a_reload_succeeds(tmp_path: Path) -> None:
    what = "the last reload was refused; the previous config is in use"
    async with party(tmp_path) as running:
        await running.reload(more="nonsense = 1\n", status=422)
        status = await running.operator.get("/status")
        (problem,) = status["problems"]
        assert (problem["what"], problem["next"]) == (what, "relay check-config")
        assert "nonsense" in problem["why"]
        assert not status["last_reload"]["taken"]
        await running.reload()
        status = await running.operator.get("/status")
    assert status["problems"] == []
    assert status["last_reload"]["taken"]


async def test_unreadable_requests_are_reported(tmp_path: Path) -> None:
    async with party(tmp_path) as running:
        assert (await running.relay.ask(post(b"[]"))).status == 200
        problem = (await found(running.operator))["1 request held no readable event"]
    assert (problem["severity"], problem["next"]) == ("ticket", "relay unreadable list")


@pytest.mark.parametrize(
    ("off_s", "what"),
    [
        (90, "this host's clock is 1 min 30 s ahead of the sender's (source main)"),
        (900, "every request of source main is too old or in the future"),
    ],
)
async def test_a_wrong_clock_is_reported(tmp_path: Path, off_s: int, what: str) -> None:
    async with party(tmp_path) as running:
        for number in range(SKEWS_MIN):
            event = body(f"evt_{number}")
            late = ("Service-Signature", signed(event, at_s=now_s() - off_s))
            await running.relay.ask(post(event, late, sign=False))
        problem = (await found(running.operator))[what]
    assert problem["next"] == "timedatectl status"


async def test_requests_of_strangers_need_no_operator(tmp_path: Path) -> None:
    async with party(tmp_path) as running:
        for _ in range(20):
            assert (await running.relay.ask(post(body("evt_1"), sign=False))).status == 401
        status = await running.operator.get("/status")
        assert [each["what"] for each in status["problems"]] == [
            "requests of source main have invalid signatures"
        ]
        assert status["well"]
        await running.send("evt_2")
        assert await found(running.operator) == {}


async def test_a_rotation_with_quarantined_requests_is_no_page_yet(tmp_path: Path) -> None:
    async with party(tmp_path) as running:
        await running.operator.post("/sources/main/rotation", {"duration_ms": 60_000})
        assert "the secret of source main is being rotated" in await found(running.operator)
        event = body("evt_1")
        other = ("Service-Signature", signed(event, secret="the secret that is not there yet"))
        assert (await running.relay.ask(post(event, other, sign=False))).status == 401
        problem = (await found(running.operator))[
            "1 request of source main wait for its new secret"
        ]
    assert problem["severity"] == "info"


async def test_a_loss_is_a_problem_until_it_is_acknowledged(tmp_path: Path) -> None:
    clock = ShiftedClock()
    settings = service.read(tmp_path, tables=ADMIN)
    async with service.serving(settings, clock=clock) as relay:
        async with asyncio.timeout(30):
            while not relay.stored("state"):
                await asyncio.sleep(0.01)
    clock.shift_s = 3 * HOUR_S
    async with service.serving(settings, clock=clock) as relay, operating(relay) as operator:
        problem = (await found(operator))["events were lost while the relay was away"]
        assert problem["next"] == "relay absences acknowledge 1"
        await operator.post("/absences/1/acknowledge")
        assert await found(operator) == {}


async def test_a_stalled_replay_is_reported(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with StubServer() as destination:
        settings = service.read(tmp_path, tables=ADMIN, destination=destination)
        async with service.serving(settings, clock=clock) as relay, operating(relay) as operator:
            assert (await relay.ask(post(body("evt_1")))).status == 202
            await relay.until_counted("relay_deliveries_total", "delivered", "leads")
            destination.reply = lambda _: Reply(503)
            await operator.post("/replays", {"sink": "leads"})
            async with asyncio.timeout(30):
                while (sinks := await _sinks(operator))["leads"]["replaying_since_ms"] is None:
                    await asyncio.sleep(0.01)
            assert sinks["leads"]["oldest_pending_ms"] is None
            assert "a replay to sink leads makes no progress" not in await found(operator)
            clock.shift_s = HOUR_S
            assert "a replay to sink leads makes no progress" in await found(operator)


async def _sinks(operator: Operator) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in (await operator.get("/status"))["sinks"]}


@contextlib.asynccontextmanager
async def held(relay: Relay) -> AsyncIterator[None]:
    """Block the store's threads, as a hanging disk does."""
    released = threading.Event()
    store = relay.service._store
    assert isinstance(store, SqliteStore)
    waits = [
        asyncio.create_task(store._writer.run_exclusive(lambda _: released.wait(60))),
        asyncio.create_task(store._shared.reader.run(lambda _: released.wait(60))),
    ]
    try:
        yield
    finally:
        released.set()
        await asyncio.gather(*waits)


async def test_a_hanging_disk_does_not_delay_the_verdict(tmp_path: Path) -> None:
    async with delivering(tmp_path, 200) as running, held(running.relay):
        status = await running.operator.get("/status")
    first, second = status["problems"][:2]
    assert (first["severity"], first["why"]) == ("page", "the store has not committed within 2 s")
    assert second["what"] == "the store cannot be read: this status is incomplete"
    assert [(each["name"], each["pending"]) for each in status["sinks"]] == [("crm", None)]


async def test_too_little_free_space_is_the_first_problem(tmp_path: Path) -> None:
    settings = service.read(tmp_path, tables=ADMIN, min_free="1024GiB")
    async with service.serving(settings) as relay, operating(relay) as operator:
        (problem,) = (await operator.get("/status"))["problems"]
    assert (problem["severity"], problem["next"]) == ("page", f"df -h {tmp_path}")
    assert problem["why"].startswith("the store is short of free space; ")
