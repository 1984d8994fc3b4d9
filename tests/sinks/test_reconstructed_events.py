"""A message about a reconstructed event says so."""

from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from relay import sinks
from relay.core.config_values import Secret
from relay.core.event import LEAD_CAPTURED, Event
from relay.core.sample_events import event
from relay.outbound import cloudevents, message
from relay.sinks.slack.digest import digest
from relay.sinks.sqs import sink as sqs
from tests.conftest import ManualClock

ORIGINAL = event(LEAD_CAPTURED)
MADE = replace(ORIGINAL, reconstructed=True)
URL = Secret("https://hooks.example.com/services/T0/B0/token")


def rendered(type_: str, what: Event, **settings: Any) -> dict[str, Any]:
    module = sinks.load(type_)
    kinds: dict[str, Any] = {"name": "one", "type": type_, "events": (LEAD_CAPTURED,)}
    sink = module.build(module.Settings(**kinds, **settings), ManualClock())
    return sink.render(what)


@pytest.mark.parametrize("form", ["raw", "cloudevents"])
def test_http_has_a_header(form: str) -> None:
    headers = rendered("http", MADE, url=URL, format=form)["headers"]
    assert headers["relay-reconstructed"] == "true"
    assert headers.get("ce-reconstructed") == ("true" if form == "cloudevents" else None)
    assert "relay-reconstructed" not in rendered("http", ORIGINAL, url=URL)["headers"]


def test_queues_have_a_header() -> None:
    assert message.headers(MADE, "raw", prefix="ce-")["relay-reconstructed"] == "true"
    named = message.headers(MADE, "cloudevents", prefix="ce-")
    assert (named["relay-reconstructed"], named["ce-reconstructed"]) == ("true", "true")
    assert "relay-reconstructed" not in message.headers(ORIGINAL, "raw", prefix="ce-")


def test_cloudevents_have_an_extension() -> None:
    assert cloudevents.attributes(MADE)["reconstructed"] == "true"
    assert "reconstructed" not in cloudevents.attributes(ORIGINAL)


@pytest.mark.parametrize("form", ["raw", "cloudevents"])
def test_sqs_has_no_more_attributes_than_it_takes(form: str) -> None:
    url = "https://sqs.eu-central-1.amazonaws.com/123456789012/events"
    attributes = rendered("sqs", MADE, queue_url=url, format=form)["attributes"]
    assert attributes.keys() & {"relay-reconstructed", "ce-reconstructed"}
    assert len(attributes) <= sqs.ATTRIBUTES_MAX


def test_stdout_has_a_member() -> None:
    assert orjson.loads(rendered("stdout", MADE)["line"])["reconstructed"] is True
    assert "reconstructed" not in orjson.loads(rendered("stdout", ORIGINAL)["line"])


@pytest.mark.parametrize("own", [{}, {"text": "A lead: {{ data.name }}"}])
def test_slack_says_it_in_the_last_line(own: dict[str, str]) -> None:
    assert "Reconstructed after an outage" in str(rendered("slack", MADE, url=SLACK, **own))
    assert "econstructed" not in str(rendered("slack", ORIGINAL, url=SLACK, **own))


SLACK = Secret("https://hooks.slack.com/services/T00000000/B00000000/marked")


def test_slack_counts_them_in_a_digest() -> None:
    assert "1 of them reconstructed" in digest([MADE, ORIGINAL])["text"]
    assert "reconstructed" not in digest([ORIGINAL, ORIGINAL])["text"]


def test_a_template_may_say_it_in_its_own_words() -> None:
    text = "{% if reconstructed %}Late: {% endif %}{{ data.name }}"
    assert "Late: " in str(rendered("slack", MADE, url=SLACK, text=text))
    assert "Late: " not in str(rendered("slack", ORIGINAL, url=SLACK, text=text))
