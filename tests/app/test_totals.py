"""Counters of leads and views as Prometheus reads them: a restart does not lower them."""

import asyncio
import time
from contextlib import closing
from pathlib import Path

import httpx
import orjson
import pytest

from relay.core import signature
from relay.receiver import secret_rotation
from relay.store.sqlite.driver import sqlite3
from tests import service
from tests.app.reloading import party
from tests.caller import post, signed
from tests.guarantees.process import SECRET, Relay, http_client, until
from tests.operator import ADMIN, TOKEN
from tests.service import OTHER_SECRET, ShiftedClock

AS_OPERATOR = {"authorization": f"Bearer {TOKEN}"}
LEADS = "relay_leads_captured_total"
WATCHED = "relay_video_watched_total"
LAST = "relay_last_event_timestamp_seconds"
EVENTS = "relay_events_total"
OTHER = '[[source]]\nname = "other"\npath = "/other"\nsecrets = ["env:OTHER_SECRET"]\n'


def body(event_id: str, kind: str = "lead.captured", **data: object) -> bytes:
    return orjson.dumps({"id": event_id, "event": kind, "data": data})


async def send(relay: service.Relay, *bodies: bytes) -> list[int]:
    return [(await relay.ask(post(each))).status for each in bodies]


async def figures(relay: service.Relay) -> dict[str, dict[tuple[str, ...], float]]:
    return {name: await relay.counts(name) for name in (LEADS, WATCHED, LAST)}


async def test_counters_include_all_accepted_events_after_a_restart(tmp_path: Path) -> None:
    settings = service.read(tmp_path)
    async with service.serving(settings) as relay:
        watched = body("w", "video.watched", milestone="50%")
        changed = body("a", email="ann@example.com")
        sent = await send(relay, body("a"), body("b"), watched, body("a"), changed, b"[]")
        assert sent == [202, 202, 202, 200, 200, 200]
        before = await figures(relay)
        assert before[LEADS] == {("main",): 2}
        assert before[WATCHED] == {("50%", "main"): 1}
        assert set(before[LAST]) == {("lead.captured", "main"), ("video.watched", "main")}
    async with service.serving(settings) as relay:
        assert await figures(relay) == before
        assert await relay.counts(EVENTS) == {}
        assert await send(relay, body("a"), body("c")) == [200, 202]
        assert await relay.counts(LEADS) == {("main",): 3}
        assert await relay.counts(WATCHED) == before[WATCHED]


async def test_the_counters_of_a_source_that_is_added_again_continue(tmp_path: Path) -> None:
    async def lead(event_id: str) -> int:
        content = body(event_id)
        header = ("Service-Signature", signed(content, secret=OTHER_SECRET))
        request = post(content, header, target="/other", sign=False)
        return (await there.relay.ask(request)).status

    async with party(tmp_path, OTHER) as there:
        assert [await lead("a"), await lead("b")] == [202, 202]
        await there.reload()
        assert await there.relay.counts(LEADS) == {}
        await there.reload(OTHER)
        assert await there.relay.counts(LEADS) == {("other",): 2}
        assert await lead("c") == 202
        assert await there.relay.counts(LEADS) == {("other",): 3}
        await there.reload()
    async with party(tmp_path) as there:
        assert 'source="other"' not in await there.relay.metrics()
        await there.reload(OTHER)
        assert await there.relay.counts(LEADS) == {("other",): 3}


async def test_a_request_that_waited_for_its_secret_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_rotation, "POLL_INTERVAL_S", 0.05)
    new = "the-secret-that-comes-later"
    (tmp_path / "secret").write_text("the-secret-that-was-before")
    source = OTHER.replace("env:OTHER_SECRET", f"file:{tmp_path}/secret")

    async with party(tmp_path, source) as there:
        await there.operator.post("/sources/other/rotation", {"duration_ms": 900_000})
        content = body("a")
        header = ("Service-Signature", signed(content, secret=new))
        request = post(content, header, target="/other", sign=False)
        assert (await there.relay.ask(request)).status == 401
        (tmp_path / "secret").write_text(new)
        assert (await there.operator.client.post("/-/reload")).status_code == 200
        await there.relay.until_counted(LEADS, "other")
        assert (await there.relay.ask(request)).status == 200
        assert await there.relay.counts(LEADS) == {("other",): 1}


async def test_a_clock_set_back_does_not_make_the_last_event_older(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with service.serving(service.read(tmp_path), clock=clock) as relay:
        await send(relay, body("a"))
        before = await relay.counts(LAST)
        clock.shift_s = -100
        await send(relay, body("b"))
        assert await relay.counts(LAST) == before


@pytest.mark.servers
async def test_kill_9_loses_no_scraped_count_and_no_acknowledged_event(tmp_path: Path) -> None:
    acknowledged = 0

    async def leads(relay: Relay, run: str) -> None:
        nonlocal acknowledged
        async with http_client() as client:
            for number in range(10_000):
                content = body(f"{run}_{number}")
                header = signature.header(SECRET.encode(), now_s=int(time.time()), body=content)
                try:
                    answer = await client.post(
                        relay.url, content=content, headers={"service-signature": header}
                    )
                except httpx.TransportError:
                    return
                acknowledged += answer.status_code == httpx.codes.ACCEPTED

    async def counted() -> int:
        """The leads of the audience; asking for them counts some more."""
        async with http_client() as client:
            answer = await client.get(f"{relay.admin_url}/api/v1/audience", headers=AS_OPERATOR)
        return int(answer.json()["total"][-1]["events"])

    async with Relay(tmp_path, sinks="", rest=ADMIN) as relay:
        await relay.start()
        for run in range(3):
            aim = acknowledged + 50
            async with asyncio.TaskGroup() as group:
                for sender in range(4):
                    group.create_task(leads(relay, f"{run}_{sender}"))
                await until(lambda aim=aim: acknowledged > aim, what="leads")  # type: ignore[misc]
                scraped = await relay.metric(LEADS)
                # Each kill may have left one event per sender stored and unanswered.
                assert await counted() <= acknowledged + 4 * (run + 1)
                await relay.kill()
            await relay.start()
            with closing(sqlite3.connect(f"file:{relay.store}?mode=ro", uri=True)) as db:
                stored = db.execute("SELECT count(*) FROM events").fetchone()[0]
            assert await relay.metric(LEADS) == stored
            assert stored >= max(scraped, acknowledged)
            assert await counted() == stored
