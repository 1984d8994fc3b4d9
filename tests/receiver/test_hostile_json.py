"""JSON that is too deep, too large or none at all, whether of a stranger or an operator."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.cli import events
from tests import service
from tests.caller import post
from tests.operator import ADMIN, Operator, operating
from tests.service import Relay
from tests.stub_server import StubServer

DEEP = [each * depth for each in ("[", '{"a":') for depth in (900, 1000, 5000, 13_000)]
VALUES = [
    *(text + "1" + "]" * len(text) for text in DEEP if text.startswith("[")),
    *(text + "1" + "}" * text.count(":") for text in DEEP if text.startswith("{")),
    *("9" * 400, "9" * 5000, "-" + "9" * 30, "9223372036854775808", "1e308", "1e400"),
    *("NaN", "Infinity", "1.5", "null", "true", "[]", "{}"),
    *('"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"' + "x" * 60_000 + '"'),
]
RULES = """
[[sink]]
name = "ruled"
type = "http"
url = "{url}"
when = "to_string(data) != 'x'"

[[sink]]
name = "written"
type = "slack"
url = "{url}services/T0/B0/x"
text = "{{{{ data }}}}"
events = ["lead.captured"]
"""


@pytest.fixture
async def operated(tmp_path: Path) -> AsyncIterator[tuple[Relay, Operator]]:
    async with StubServer() as destination:
        tables = ADMIN + RULES.format(url=destination.url())
        async with (
            service.serving(service.read(tmp_path, tables=tables)) as relay,
            operating(relay) as operator,
        ):
            yield relay, operator


def bodies(document: Any) -> Iterator[tuple[str, str]]:
    """Paths of the API with what is to be posted there."""
    schemas = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        if "requestBody" not in operations.get("post", {}):
            continue
        schema = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
        named = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        yield from ((path, each) for each in VALUES)
        for name, value in itertools.product([*named.get("properties", {}), "\\ud800"], VALUES):
            yield path, f'{{"{name}":{value}}}'


@pytest.mark.servers
async def test_no_body_at_the_admin_api_causes_a_server_error(
    operated: tuple[Relay, Operator],
) -> None:
    relay, operator = operated
    asked = 0
    for path, body in bodies(await operator.get("/openapi.json")):
        url = path.replace("{name}", "main").replace("{number}", "1")
        answer = await operator.client.post(url, content=body)
        assert answer.status_code < 500, (path, body[:60], answer.text)
        assert answer.is_success or answer.headers["content-type"] == "application/problem+json"
        asked += 1
    assert asked > 300
    assert relay.lines("library.message") == []


async def test_a_body_that_is_nested_too_deeply_is_reported(
    operated: tuple[Relay, Operator],
) -> None:
    _, operator = operated
    answer = await operator.client.post("/api/v1/replays", content='{"id":' + "[" * 60_000)
    assert answer.status_code == 400
    assert answer.json()["detail"] == "The body is nested too deeply."


@pytest.mark.parametrize("value", VALUES[:8])
async def test_a_deep_event_is_taken_or_unreadable_and_never_a_bug(
    operated: tuple[Relay, Operator], value: str
) -> None:
    relay, operator = operated
    body = f'{{"id":"deep","event":"lead.captured","createdAt":{value},"data":{{"a":{value}}}}}'
    answer = await relay.ask(post(body.encode()))
    assert answer.content["status"] in ("accepted", "unreadable")
    for event in (await operator.get("/events"))["events"]:
        shown = await operator.get(f"/events/{event['seq']}")
        assert shown["body"] == body
    assert [line for line in relay.log.splitlines() if '.bug"' in line] == []


@pytest.mark.parametrize("value", VALUES)
def test_a_body_that_cannot_be_laid_out_is_shown_as_it_came(value: str) -> None:
    assert events._body(value)
    assert events._body(DEEP[3]) == [DEEP[3]]


def test_the_hostile_values_are_really_hostile() -> None:
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(VALUES[2])
