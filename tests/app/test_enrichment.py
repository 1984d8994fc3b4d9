"""A running relay says what a lead has watched as its source's API knows it, or goes without."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.app.reloading import Party, party, sink
from tests.caller import post
from tests.stub_server import Reply, Request, StubServer, until

EMAIL = "ada@example.com"
KEY = "key_of_the_tests_0123456789"
WATCHED = {
    "videos": [
        {
            "video": {"id": "vid_01", "title": "Product tour"},
            "watchedPercent": 75,
            "finished": False,
            "lastWatchedAt": "2026-03-02T09:30:00.000Z",
        }
    ]
}
ENRICHED = "enrich = true\n"


@pytest.fixture
async def api() -> AsyncIterator[StubServer]:
    async with StubServer() as api:
        api.reply = lambda _: Reply(body=orjson.dumps(WATCHED))
        yield api


def source_api(api: StubServer, *, key: str = KEY) -> str:
    return f'[source.api]\nbase_url = "{api.url("")}"\nkey = "{key}"\n'


def lead(event_id: str, email: str = EMAIL) -> bytes:
    data = {"email": email, "video": {"id": "vid_01", "title": "Product tour"}}
    return orjson.dumps({"id": event_id, "event": "lead.captured", "data": data})


async def send(there: Party, *bodies: bytes) -> None:
    for body in bodies:
        assert (await there.relay.ask(post(body))).status == 202


async def delivered(destination: StubServer, path: str, count: int = 1) -> list[Request]:
    def found() -> list[Request]:
        return [request for request in destination.requests if request.target == path]

    await until(lambda: len(found()) >= count, what=f"{count} deliveries to {path}")
    return found()


def history(request: Request) -> Any:
    text = request.header.get("relay-watched")
    return None if text is None else json.loads(text)


@contextlib.asynccontextmanager
async def serving(
    folder: Path, destination: StubServer, api: StubServer, more: str = ENRICHED
) -> AsyncIterator[Party]:
    tables = (
        source_api(api),
        sink("crm", destination.url("/crm"), more),
        sink("log", destination.url("/log")),
    )
    async with party(folder, *tables) as there:
        yield there


async def test_a_sink_with_enrich_says_what_the_lead_watched_and_others_do_not(
    tmp_path: Path, destination: StubServer, api: StubServer
) -> None:
    async with serving(tmp_path, destination, api) as there:
        await send(there, lead("a"))
        (crm,) = await delivered(destination, "/crm")
        (log,) = await delivered(destination, "/log")
        await there.relay.until_counted("relay_enrichments_total", "answered")
    assert history(crm)["watched"][0]["title"] == "Product tour"
    assert history(crm)["watched"][0]["milestone"] == "75%"
    assert history(log) is None
    assert crm.body == log.body == lead("a")
    (asked,) = api.requests
    assert asked.header["authorization"] == f"Bearer {KEY}"


async def test_another_event_of_the_person_requests_no_history(
    tmp_path: Path, destination: StubServer, api: StubServer
) -> None:
    view = {"id": "v", "event": "video.watched", "data": {"viewer": {"email": EMAIL}}}
    async with serving(tmp_path, destination, api) as there:
        await send(there, orjson.dumps(view))
        await delivered(destination, "/crm")
    assert api.requests == []


async def test_a_hanging_api_delays_only_its_own_sink_and_that_by_its_limit(
    tmp_path: Path, destination: StubServer, api: StubServer
) -> None:
    api.reply = lambda _: None
    more = ENRICHED + 'enrich_timeout = "500ms"\n'
    async with serving(tmp_path, destination, api, more) as there:
        started_s = time.monotonic()
        await send(there, lead("a"))
        await delivered(destination, "/log")
        assert [request.target for request in destination.requests] == ["/log"]
        (crm,) = await delivered(destination, "/crm")
        assert 0.5 <= time.monotonic() - started_s < 5
        # The next ones do not wait for it any more.
        await send(there, *(lead(f"b{number}", f"p{number}@example.com") for number in range(20)))
        await delivered(destination, "/crm", 21)
        await there.relay.until_counted("relay_enrichments_total", "paused", value=20)
        assert EMAIL not in there.relay.log
    assert history(crm) is None
    assert len(api.requests) == 1


async def test_a_retry_does_not_ask_again(
    tmp_path: Path, destination: StubServer, api: StubServer
) -> None:
    replies = [Reply(503), Reply(200)]
    destination.reply = lambda request: replies.pop(0) if request.target == "/crm" else Reply()
    more = ENRICHED + 'retry = { first = "100ms" }\n'
    async with serving(tmp_path, destination, api, more) as there:
        await send(there, lead("a"))
        first, second = await delivered(destination, "/crm", 2)
    assert history(first) == history(second) is not None
    assert len(api.requests) == 1


async def test_an_api_that_is_down_stops_nothing(
    tmp_path: Path, destination: StubServer, api: StubServer
) -> None:
    await api.stop()
    async with serving(tmp_path, destination, api) as there:
        await send(there, *(lead(f"e{number}") for number in range(10)))
        requests = await delivered(destination, "/crm", 10)
        await until(lambda: "cannot connect" in there.relay.log, what="the reason in the log")
    assert [history(request) for request in requests] == [None] * 10


async def test_enrich_can_be_switched_on_and_off_by_a_reload(
    tmp_path: Path, destination: StubServer, api: StubServer
) -> None:
    plain, enriched = (sink("crm", destination.url("/crm"), more) for more in ("", ENRICHED))
    async with party(tmp_path, plain) as there:
        await send(there, lead("a"))
        await delivered(destination, "/crm")
        await there.reload(source_api(api), enriched)
        await send(there, lead("b"))
        await delivered(destination, "/crm", 2)
        await there.reload(source_api(api), plain)
        await send(there, lead("c"))
        requests = await delivered(destination, "/crm", 3)
    assert [history(request) is not None for request in requests] == [False, True, False]


async def test_a_new_key_is_used_after_a_reload(
    tmp_path: Path, destination: StubServer, api: StubServer
) -> None:
    enriched = sink("crm", destination.url("/crm"), ENRICHED)
    async with party(tmp_path, source_api(api), enriched) as there:
        await send(there, lead("a"))
        await delivered(destination, "/crm")
        await there.reload(source_api(api, key="another-key-0123456789"), enriched)
        await send(there, lead("b"))
        await delivered(destination, "/crm", 2)
    keys = [request.header["authorization"] for request in api.requests]
    assert keys == [f"Bearer {KEY}", "Bearer another-key-0123456789"]


async def test_an_erased_person_is_no_longer_exported_or_requested(
    tmp_path: Path, destination: StubServer, api: StubServer
) -> None:
    async with serving(tmp_path, destination, api) as there:
        await send(there, lead("a"))
        await delivered(destination, "/crm")
        before = await there.operator.post("/people/export", {"email": EMAIL.upper()})
        await there.operator.post("/people/erase", {"email": EMAIL})
        after = await there.operator.post("/people/export", {"email": EMAIL})
        await send(there, lead("b"))
        _, second = await delivered(destination, "/crm", 2)
        await there.relay.until_counted("relay_enrichments_total", "erased")
    (kept,) = before["watched"]
    assert kept["source"] == "main"
    assert kept["history"]["videos"][0]["title"] == "Product tour"
    assert after["watched"] == []
    assert history(second) is None
    assert len(api.requests) == 1


async def test_a_stop_does_not_wait_for_the_api(
    tmp_path: Path, destination: StubServer, api: StubServer
) -> None:
    api.reply = lambda _: None
    async with asyncio.timeout(10), serving(tmp_path, destination, api) as there:
        await send(there, lead("a"))
        await until(lambda: len(api.requests) == 1, what="the look-up")
    assert api.open == 0
