"""Requests that a config describes: method, URL, headers and body, filled in with events."""

import base64
import json
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import orjson
import pytest
from freezegun import freeze_time
from msgspec import convert
from msgspec.structs import replace
from standardwebhooks import Webhook

from relay.core import config_values, sample_events
from relay.core.errors import InvalidTemplate, Refused
from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED, Event
from relay.outbound.template_environment import OUTPUT_MAX
from relay.sinks.http.sink import HttpSink, Settings
from tests.conftest import ManualClock
from tests.sinks.conformance import built
from tests.sinks.http.hostile import hostile_leads
from tests.stub_server import Reply, Request, StubServer

SECRET = "whsec_" + base64.b64encode(b"a key of 24 bytes or more").decode()
LEADS = ("lead.captured",)

Make = Callable[..., HttpSink]

DESCRIBED = tomllib.loads(Path(__file__).with_name("described.toml").read_text("utf-8"))["sink"]


@pytest.fixture
async def make(clock: ManualClock) -> AsyncIterator[Make]:
    made: list[HttpSink] = []

    def make(url: str = "https://crm.example/", **table: object) -> HttpSink:
        made.append(built("http", clock, **{"url": url, "events": LEADS, **table}))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


async def sent(sink: HttpSink, destination: StubServer, event: Event) -> Request:
    before = len(destination.requests)
    await sink.send(event)
    assert len(destination.requests) == before + 1
    return destination.requests[-1]


def lead_of(**data: object) -> Event:
    sample = sample_events.event(LEAD_CAPTURED)
    document = sample.document()
    document["data"] |= data
    return replace(sample, body=json.dumps(document).encode())


async def test_a_table_is_serialized_after_its_texts_are_filled_in(
    destination: StubServer, make: Make
) -> None:
    body = {
        "text": "{{ data.name }}",
        "fixed": 'a "b"',
        "number": 75,
        "ratio": 0.5,
        "on": True,
        "list": ["{{ event }}", {"id": "{{ id }}", "json": "{{ source }}"}],
        "typed": {"json": '[{{ data.progress }}, {{ data.fields }}, "{{ data.name }}"]'},
    }
    name = 'x", "admin": true\n\\'
    event = lead_of(name=name, progress=75, fields={"a": [1]})
    sink = make(destination.url("/hook"), body=body, when="data.progress == `75`")
    request = await sent(sink, destination, event)
    assert json.loads(request.body) == {
        "text": name,
        "fixed": 'a "b"',
        "number": 75,
        "ratio": 0.5,
        "on": True,
        "list": ["lead.captured", {"id": "evt_sample", "json": "sample"}],
        "typed": [75, {"a": [1]}, name],
    }
    assert request.header["content-type"] == "application/json"
    assert request.header["content-length"] == str(len(request.body))


@pytest.mark.parametrize("form", ["text", "table"])
async def test_a_whole_json_text_may_be_a_list(
    destination: StubServer, make: Make, form: str
) -> None:
    text = '[{"subject": "{{ data.video.title }}", "data": {{ data }}}]'
    sink = make(destination.url("/"), body=text if form == "text" else {"json": text})
    event = lead_of()
    data = event.document()["data"]
    request = await sent(sink, destination, event)
    assert json.loads(request.body) == [{"subject": data["video"]["title"], "data": data}]


async def test_a_form_has_the_fields_of_the_config(destination: StubServer, make: Make) -> None:
    form = {
        "oid": "00D",
        "last_name": "{{ data.name }}",
        "to": ["a@example.com", "{{ data.email }}"],
        "n": 5,
        "o:test": True,
    }
    event = lead_of(name="a&b=c d+é\r\n%", email="x@example.com")
    request = await sent(make(destination.url("/"), form=form), destination, event)
    assert request.header["content-type"] == "application/x-www-form-urlencoded"
    assert parse_qsl(request.body.decode()) == [
        ("oid", "00D"),
        ("last_name", "a&b=c d+é\r\n%"),
        ("to", "a@example.com"),
        ("to", "x@example.com"),
        ("n", "5"),
        ("o:test", "true"),
    ]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_a_request_has_the_method_of_the_config(
    destination: StubServer, make: Make, method: str
) -> None:
    event = lead_of()
    request = await sent(make(destination.url("/x"), method=method), destination, event)
    assert (request.method, request.target, request.body) == (method, "/x", event.body)


async def test_values_in_the_url_are_percent_encoded_and_the_rest_is_kept(
    destination: StubServer, make: Make
) -> None:
    url = destination.url("/v1/../a b/{{ data.id }}/ü?q={{ data.name }}&sig=a%2Fb#x")
    request = await sent(make(url), destination, lead_of(id="ä/?#", name="a&b=1"))
    assert request.target == "/v1/../a%20b/%C3%A4%2F%3F%23/%C3%BC?q=a%26b%3D1&sig=a%2Fb"
    assert request.header["host"] == f"127.0.0.1:{destination.port}"


@pytest.mark.parametrize("text", ["", ".", "..", "../../admin"])
async def test_an_event_that_would_fold_the_path_is_refused_and_not_sent(
    destination: StubServer, make: Make, text: str
) -> None:
    sink = make(destination.url("/leads/{{ data.id }}"))
    with pytest.raises(Refused) as caught:
        await sink.send(lead_of(id=text))
    assert caught.value.reason == (
        "the template fails on this event: url: nothing, . or .. would stand in the path"
    )
    assert destination.requests == []


async def test_headers_are_filled_in_and_secrets_are_not(
    destination: StubServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_THE_TEST", "{{ id }}{#")
    headers = {
        "x-key": "env:KEY_OF_THE_TEST",
        "x-id": "{{ data.id }}",
        "x-empty": "{{ data.nothing | default('') }}",
        "x-blank": " {{ event }} ",
        "Content-Type": "application/{{ source }}+json",
    }
    sink = make(destination.url("/"), headers=headers)
    request = await sent(sink, destination, lead_of(id="lead 1"))
    assert len(request.header) == len(request.headers)
    assert {name: request.header.get(name) for name in ("x-key", "x-id", "x-empty", "x-blank")} == {
        "x-key": "{{ id }}{#",
        "x-id": "lead 1",
        "x-empty": None,
        "x-blank": "lead.captured",
    }
    assert request.header["content-type"] == "application/sample+json"


@pytest.mark.parametrize("text", ["Zoë", "a\r\nx-admin: yes", "a\x00", "👋"])
async def test_an_event_that_no_header_can_carry_is_refused(
    destination: StubServer, make: Make, text: str
) -> None:
    sink = make(
        destination.url("/"),
        headers={"x-name": "{{ data.name | default('') | cut(9) }}"},
        when="data.name == 'none'",
    )
    with pytest.raises(Refused, match=r"headers\.x-name: expected printable ASCII") as caught:
        await sink.send(lead_of(name=text))
    assert text not in caught.value.reason
    assert destination.requests == []


async def test_signatures_are_over_what_is_sent(destination: StubServer, make: Make) -> None:
    event = lead_of(name="Zoë")
    for table in ({"body": {"name": "{{ data.name }}"}}, {"form": {"name": "{{ data.name }}"}}):
        sink = make(destination.url("/"), signing_secrets=[SECRET], **table)
        request = await sent(sink, destination, event)
        assert request.body != event.body
        assert request.header["webhook-id"] == event.id
        with freeze_time("2026-03-02T09:30:00Z"):
            Webhook(SECRET).verify(request.body, request.header, json_parse=False)


async def test_what_a_person_has_watched_is_a_word_of_templates(
    destination: StubServer, make: Make
) -> None:
    body = {"seen": "{{ watched.videos | default(0) }}", "last": {"json": "{{ watched }}"}}
    sink = make(destination.url("/"), body=body, enrich=True)
    request = await sent(sink, destination, lead_of())
    assert json.loads(request.body) == {"seen": "0", "last": None}
    event = replace(lead_of(), watch_history=sample_events.WATCHED)
    request = await sent(sink, destination, event)
    document = json.loads(request.body)
    assert document["seen"] == "2"
    assert document["last"] == json.loads(request.header["relay-watched"])


async def test_a_large_event_is_filled_in_too(destination: StubServer, make: Make) -> None:
    event = lead_of(name="Ada", message="x" * 100_000)
    sink = make(destination.url("/"), body={"text": "{{ data.message | default('') | cut(2) }}"})
    request = await sent(sink, destination, event)
    assert json.loads(request.body) == {"text": "x…"}


async def test_the_limits_hold_over_a_whole_request(make: Make) -> None:
    half = "{{ data.name }}"
    sink = make(
        url="https://crm.example/?q=" + half,
        headers={"x-a": half},
        body={"a": half},
        when="`false`",
    )
    assert sink.render(lead_of(name="x" * (OUTPUT_MAX // 3 - 2)))
    with pytest.raises(InvalidTemplate, match=str(OUTPUT_MAX)):
        sink.render(lead_of(name="x" * (OUTPUT_MAX // 3 + 1)))


async def test_a_value_that_no_json_can_hold_fails_without_being_repeated(make: Make) -> None:
    deep: Any = "marked"
    for _ in range(300):
        deep = [deep]
    nested = '{"a":' * 300 + "1" + "}" * 300
    for body, fault in (
        ({"a": {"json": "{{ data.fields }}"}}, "it fails with"),
        ({"a": {"json": nested + "{% if data.fields %}{% endif %}"}}, "nested too deeply"),
        ({"a": {"json": '{"a": {% if data.fields is string %}1{% endif %}}'}}, "is no JSON"),
    ):
        sink = built("http", url="https://crm.example/", body=body, when="`false`")
        with pytest.raises(InvalidTemplate, match=fault) as caught:
            sink.render(lead_of(fields=deep))
        assert "marked" not in str(caught.value)
        assert "marked" not in repr(caught.value.__context__)
        await sink.close()


async def test_an_answer_that_repeats_url_or_headers_is_masked(
    destination: StubServer, make: Make
) -> None:
    destination.reply = lambda request: Reply(
        200, json.dumps([unquote(request.target), request.target, request.headers]).encode()
    )
    sink = make(
        destination.url("/leads/{{ data.email }}"),
        headers={"x-who": "by {{ data.name }}"},
        when="`false`",
    )
    response = await sink.send(lead_of(email="ada.moreau@example.com", name="Ada-Moreau"))
    for personal in ("ada.moreau", "example.com", "Ada-Moreau"):
        assert personal not in response.excerpt


async def test_a_header_of_many_words_does_not_make_answers_slow_to_mask(make: Make) -> None:
    sink = make(headers={"x-who": "{{ data.name }}"}, when="`false`")
    names = "marked-one marked-two", " ".join(f"word-{number:04}" for number in range(5000))
    few, many = [await sink._request.of(lead_of(name=name), sink._endpoint) for name in names]
    assert {"marked-one", "marked-two"} <= set(few.endpoint.secrets)
    assert len(many.endpoint.secrets) < 30


async def test_what_is_shown_of_a_request_holds_no_secret_and_nothing_personal(make: Make) -> None:
    sink = make(
        "https://user:marked-secret@crm.example:8443/hook/marked-token/{{ data.name }}"
        "?q={{ data.email }}&v=1",
        headers={"x-name": "{{ data.id }}", "authorization-2": "marked-value"},
        body={"name": "{{ data.name }}"},
        method="PUT",
    )
    shown = sink.render(lead_of(name="Ada", email="ada@example.com", id="lead_1"))
    assert shown["method"] == "PUT"
    assert shown["url"] == "https://crm.example:8443/hook/***/***?q=***&v=1"
    assert shown["headers"]["x-name"] == shown["headers"]["authorization-2"] == "***"
    assert json.loads(shown["body"]) == {"name": "Ada"}
    assert "marked" not in json.dumps(shown)
    impersonal = make("https://crm.example/e/{{ id }}/{{ event }}", headers={}, body={})
    assert impersonal.render(lead_of())["url"] == "https://crm.example/e/evt_sample/lead.captured"
    fixed = make("https://crm.example/hook/marked-token?v=1&sig=marked-sig")
    assert fixed.render(lead_of())["url"] == "https://crm.example/hook/***?v=1&sig=***"


@pytest.mark.parametrize(
    ("url", "is_warned"),
    [
        ("https://crm.example/{{ data.email }}", True),
        ("https://crm.example/?q={{ data.email | upper }}", True),
        ("https://crm.example/{{ data.email | sha256 }}", False),
        ("https://crm.example/{{ data.id }}", False),
        ("https://crm.example/ada@example.com", False),
    ],
)
def test_an_address_in_a_url_is_warned_of(url: str, is_warned: bool) -> None:
    settings = settings_of(url=url, events=LEADS)
    assert [text.partition(":")[0] for text in settings.warnings()] == ["url"] * is_warned


def test_a_template_behind_a_reference_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_THE_TEST", "{{ id }}")
    headers = {"x-a": "env:KEY_OF_THE_TEST"}
    (warning,) = settings_of(url="https://crm.example/", headers=headers).warnings()
    assert warning.startswith("headers.x-a: looks like a template, but ")


def test_a_reference_in_a_body_is_warned_of() -> None:
    body = {"key": "env:KEY", "a": [{"b": "file:/etc/key"}], "c": "env: KEY", "d": "${KEY}", "n": 1}
    for table, places in (({"body": body}, ["body.key", "body.a[0].b", "body.d"]), ({}, [])):
        warnings = settings_of(url="https://crm.example/", **table).warnings()
        assert [text.partition(":")[0] for text in warnings] == places


def settings_of(**table: object) -> Any:
    return convert({"name": "a", "type": "http", **table}, Settings, dec_hook=config_values.decode)


@pytest.mark.parametrize(
    ("status", "says"), [(404, "404 to OPTIONS, which does not say"), (200, "200 to OPTIONS")]
)
async def test_a_check_of_a_filled_url_asks_for_a_sample(
    destination: StubServer, make: Make, status: int, says: str
) -> None:
    destination.reply = lambda _: Reply(status)
    sink = make(destination.url("/leads/{{ data.id }}"))
    assert (await sink.check()).startswith(says)
    (request,) = destination.requests
    assert request.method == "OPTIONS"
    assert request.target.startswith("/leads/lead_")


async def test_what_operators_describe_is_json_for_any_lead(make: Make) -> None:
    teams, salesforce = (make(**table) for table in DESCRIBED)
    taken = 0
    for lead in hostile_leads(300):
        with suppress(InvalidTemplate):
            (card,) = json.loads(teams.render(lead)["body"])["attachments"]
            texts = card["content"]["body"]
            assert [block["type"] for block in texts] == ["TextBlock", "FactSet", "TextBlock"]
            assert {name for fact in texts[1]["facts"] for name in fact} == {"title", "value"}
            taken += 1
        with suppress(InvalidTemplate):
            shown = salesforce.render(lead)
            assert list(json.loads(shown["body"])) == ["LastName", "Company", "Email"]
            assert shown["url"].endswith("/Lead/***/***")
            taken += 1
    assert taken > 200


DEFAULTED = "{{ data.name | default('-', true) }}"

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "table": {"body": {"a": DEFAULTED, "b": [{"c": "<{{ data.message | default('') }}>"}], "n": 1}},
    "json": {
        "body": '{"a": "' + DEFAULTED + '", "b": [{"c": "<{{ data.message | default(\'\') }}>"}], '
        '"n": {{ data.progress | default(0) | int }}}'
    },
    "form": {"form": {"a": DEFAULTED, "b": "{{ data.message | default('') }}", "n": 1}},
    "path": {
        "url": "https://crm.example/v1/leads/" + DEFAULTED + "/x?q={{ data.message | default('') }}"
    },
    "header": {
        "when": "`false`",  # the samples have names that no header can carry
        "headers": {
            "x-name": DEFAULTED,
            "x-escaped": "{{ data.message | default('') | string | urlencode }}",
        },
    },
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.long)])
async def test_no_lead_adds_a_member_a_header_or_a_path(make: Make, shape: str, count: int) -> None:
    sink = make(**SHAPES[shape])
    taken = 0
    for lead in hostile_leads(count):
        with suppress(Refused):  # any other error is a mistake
            READERS[shape](await sink._request.of(lead, sink._endpoint))
            taken += 1
    assert taken > count * 0.5


def read_json(request: Any) -> None:
    document = json.loads(request.body)
    assert list(document) == ["a", "b", "n"]
    assert isinstance(document["a"], str)
    ((inner,),) = [document["b"]]
    assert list(inner) == ["c"]
    assert inner["c"][0] + inner["c"][-1] == "<>"
    assert isinstance(document["n"], int | float)


def read_form(request: Any) -> None:
    pairs = parse_qsl(request.body.decode("ascii"), keep_blank_values=True, strict_parsing=True)
    assert [name for name, _ in pairs] == ["a", "b", "n"]


def read_path(request: Any) -> None:
    url = urlsplit(str(request.endpoint.url))
    assert (url.scheme, url.netloc, url.fragment) == ("https", "crm.example", "")
    parts = url.path.split("/")
    assert [*parts[:3], parts[4]] == ["", "v1", "leads", "x"]
    assert len(parts) == 5
    assert unquote(parts[3]) not in {"", ".", ".."}
    assert [name for name, _ in parse_qsl(url.query, keep_blank_values=True)] == ["q"]


def read_headers(request: Any) -> None:
    assert {name for name, _ in request.headers} <= {"x-name", "x-escaped"}
    for _, value in request.headers:
        assert value.isascii()
        assert value.isprintable()


READERS: Mapping[str, Callable[[Any], None]] = {
    "table": read_json,
    "json": read_json,
    "form": read_form,
    "path": read_path,
    "header": read_headers,
}


async def test_what_hostile_leads_become_is_read_the_same_by_a_server(
    destination: StubServer, make: Make
) -> None:
    sink = make(
        destination.url("/v1/{{ data.name | default('-', true) }}?q={{ id }}"),
        headers={"x-name": "{{ data.name | default('-', true) | string | urlencode }}"},
        body={"name": "{{ data.name | default('-', true) }}"},
    )
    fixed = {
        name
        for name, _ in sink._headers(lead_of(), await sink._request.of(lead_of(), sink._endpoint))
    }
    for lead in hostile_leads(200):
        try:
            request = await sent(sink, destination, lead)
        except Refused:
            continue
        assert {name.lower() for name, _ in request.headers} == fixed
        path, _, query = request.target.partition("?")
        assert path.count("/") == 2
        assert query == f"q={lead.id}"
        (name,) = orjson.loads(request.body).values()
        assert unquote(path.rpartition("/")[2]) == name


def test_a_sample_of_each_kind_that_the_sink_takes_is_tried() -> None:
    body = {"who": "{{ data.email }}"}
    with pytest.raises(
        InvalidTemplate, match=r"^body\.who: .*tried with a sample of video.watched"
    ):
        built("http", url="https://crm.example/", events=[LEAD_CAPTURED, VIDEO_WATCHED], body=body)
    with pytest.raises(ExceptionGroup) as caught:
        built(
            "http",
            url="https://crm.example/{{ data.x }}",
            headers={"x-a": "{{ data.x }}"},
            body={"json": "{{ event }}"},
        )
    assert [str(error).partition(":")[0] for error in caught.value.exceptions] == [
        *("url", "headers.x-a", "body")
    ]
