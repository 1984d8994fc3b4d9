"""A text that was cut within a character is delivered, found and shown like any other."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests import service
from tests.admin.page.visiting import ADMIN, visiting
from tests.caller import PATIENCE_S, post
from tests.operator import operating
from tests.service import Relay
from tests.stub_server import Request, StubServer, until

HALF, SHOWN = "\ud83d", "\ufffd"
EMAIL = f"zo{HALF}@example.com"
BODY = (
    json.dumps(
        {
            "id": "evt_1",
            "event": "lead.captured",
            "createdAt": HALF,
            "data": {
                "name": f"Zo{HALF}",
                "email": EMAIL,
                "huge": 7,
                "fields": {f"company{HALF}": f"AC{HALF}"},
                "video": {"id": f"vid{HALF}", "title": f"{HALF} Tour"},
            },
        }
    )
    .replace('"huge": 7', '"huge": -1e999')
    .encode()
)

SINKS = """
[[sink]]
name = "raw"
type = "http"
url = "{url}raw"
when = "data.huge < `0` && contains(data.name, 'Zo')"
ordered = "video"

[[sink]]
name = "events"
type = "http"
url = "{url}events"
format = "cloudevents"

[[sink]]
name = "slack"
type = "slack"
url = "{url}services/T0/B0/x"

[[sink]]
name = "templated"
type = "slack"
url = "{url}services/T1/B1/x"
events = ["lead.captured"]
text = "{{{{ data.name }}}} {{{{ data.huge | default(0) }}}} {{{{ data | tojson }}}}"
"""


@pytest.fixture
async def destination() -> AsyncIterator[StubServer]:
    async with StubServer() as destination:
        yield destination


@pytest.fixture
async def relay(tmp_path: Path, destination: StubServer) -> AsyncIterator[Relay]:
    tables = ADMIN + SINKS.format(url=destination.url())
    async with service.serving(service.read(tmp_path, tables=tables)) as relay:
        assert (await relay.ask(post(BODY))).content == {"status": "accepted", "id": "evt_1"}
        yield relay


def of(destination: StubServer, path: str) -> Request:
    (request,) = (each for each in destination.requests if each.target.startswith(path))
    return request


async def test_every_sink_gets_it(relay: Relay, destination: StubServer) -> None:
    await until(lambda: len(destination.requests) == 4, what="four messages")
    assert of(destination, "/raw").body == BODY
    assert of(destination, "/events").body == BODY
    assert of(destination, "/events").header["ce-subject"] == "vid%EF%BF%BD"
    for path, text in (("/services/T0", f"Zo{SHOWN}"), ("/services/T1", f"Zo{SHOWN} -1.797")):
        message = orjson.loads(of(destination, path).body)
        assert text in json.dumps(message, ensure_ascii=False)
    assert (await relay.ask(post(BODY))).content["status"] == "duplicate"
    assert [line for line in relay.log.splitlines() if '.bug"' in line] == []


async def test_it_is_found_as_it_is_shown(relay: Relay) -> None:
    async with operating(relay) as operator, visiting(relay) as visitor:
        shown = EMAIL.replace(HALF, SHOWN)
        filters: tuple[dict[str, Any], ...] = (
            {"email": shown.upper()},
            {"video": f"vid{SHOWN}"},
            {"words": f"Zo{SHOWN} tour"},
            {"person": relay.service._store.audience.person(shown)},
        )
        for chosen in filters:
            found = (await operator.get("/events", **chosen))["events"]
            assert [each["id"] for each in found] == ["evt_1"], chosen
        assert (await operator.get("/events", video="vid"))["events"] == []
        event = await operator.get("/events/1")
        assert (event["body"].encode(), event["event"]["created_at"]) == (BODY, SHOWN)
        for path in ("/events", "/events/1", "/audience", "/"):
            await visitor.see(path)
        text = (await visitor.client.get("/events.csv")).content.decode()
        assert [row["created"] for row in csv.DictReader(io.StringIO(text))] == [SHOWN]


async def test_the_audience_and_the_persons_data_have_it(relay: Relay) -> None:
    async with operating(relay) as operator:
        titles: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while not titles:
                groups = (await operator.get("/audience", by="video"))["groups"]
                titles = [group["title"] for group in groups]
                await asyncio.sleep(0.05)
        assert titles == [f"{SHOWN} Tour"]
        shown = EMAIL.replace(HALF, SHOWN)
        exported = await operator.post("/people/export", {"email": shown})
        assert len(exported["events"]) == 1
        assert (await operator.post("/people/erase", {"email": shown}))["events"] == 1
        assert (await operator.get("/events/1"))["body"] is None


async def test_nan_is_still_no_json(relay: Relay) -> None:
    for wrong in (b"NaN", b"Infinity", b"-Infinity"):
        answer = await relay.ask(post(BODY.replace(b"-1e999", wrong)))
        assert answer.content == {"status": "unreadable"}
