"""The `nats` sink beyond what every sink does: its message, its limits, its settings."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from nats.js.api import DiscardPolicy

from relay.core.errors import Misconfigured
from relay.core.event import Event
from tests.brokers.nats import NatsServer
from tests.sinks.nats.conftest import Make


async def test_the_message_carries_the_event(server: NatsServer, make: Make, lead: Event) -> None:
    answer = await make(stream="RELAY").send(lead)
    assert json.loads(answer.excerpt) == {"stream": "RELAY", "seq": 1}
    (message,) = server.read()
    assert (message.subject, message.data) == ("relay.lead.captured", lead.body)
    assert message.headers == {
        "relay-id": "evt_lead",
        "relay-event": "lead.captured",
        "relay-source": "main",
        "relay-received-at": "2026-03-02T09:30:00.000Z",
        "Nats-Msg-Id": "evt_lead:main:bus",
        "Nats-Expected-Stream": "RELAY",
    }


async def test_cloudevents_come_as_the_binding_names_them(
    server: NatsServer, make: Make, lead: Event
) -> None:
    await make(format="cloudevents").send(replace(lead, id="evt 1%"))
    (message,) = server.read()
    headers = message.headers or {}
    assert message.data == lead.body
    assert headers["ce-id"] == headers["relay-id"] == "evt%201%25"
    assert (headers["ce-type"], headers["ce-specversion"]) == ("lead.captured", "1.0")
    assert headers["ce-datacontenttype"] == "application/json"


async def test_a_repetition_is_delivered_and_kept_once(
    server: NatsServer, make: Make, lead: Event
) -> None:
    sink = make()
    await sink.send(lead)
    answer = await sink.send(lead)
    assert json.loads(answer.excerpt)["duplicate"] is True
    assert len(server.read()) == 1


async def test_events_of_two_sources_and_sinks_are_not_duplicates(
    server: NatsServer, make: Make, lead: Event
) -> None:
    await make().send(lead)
    await make().send(replace(lead, source="other"))
    await make(name="second").send(lead)
    assert len(server.read()) == 3


@pytest.mark.parametrize(
    ("kind", "subject"),
    [
        ("a b*c>\td", "relay.a_b_c__d"),
        (".a..b.", "relay._.a._.b._"),
        ("\N{SNOWMAN}", "relay.\N{SNOWMAN}"),
    ],
)
async def test_a_subject_holds_only_what_a_subject_can(
    server: NatsServer, make: Make, lead: Event, kind: str, subject: str
) -> None:
    document = lead.document() | {"event": kind}
    await make().send(replace(lead, kind=kind, body=json.dumps(document).encode()))
    assert [message.subject for message in server.read()] == [subject]


async def test_a_check_names_what_is_missing(server: NatsServer, make: Make) -> None:
    await make().check()
    with pytest.raises(Misconfigured, match="no stream takes the subject elsewhere"):
        await make(subject="elsewhere").check()
    with pytest.raises(Misconfigured, match=r"relay\.x belongs to the stream RELAY"):
        await make(subject="relay.x", stream="OTHER").check()
    await server.reload(subscribe="elsewhere")
    with pytest.raises(Misconfigured, match="_INBOX"):
        await make().check()


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"max_msgs": 5}, "max_msgs 5"),
        ({"max_msgs": 5, "max_bytes": 10_000}, "max_msgs 5, max_bytes 10000"),
        ({"max_msgs_per_subject": 1}, "max_msgs_per_subject 1"),
    ],
)
async def test_a_check_warns_of_a_stream_that_drops_what_nobody_has_read(
    server: NatsServer, make: Make, limits: dict[str, int], named: str
) -> None:
    await server.put_stream(discard=DiscardPolicy.OLD, **limits)
    found = await make().check()
    assert found is not None
    assert found.endswith(
        f"; warning: at its limit ({named}) the stream RELAY drops the oldest messages, unread "
        "ones too: set its discard policy to new"
    )
    await server.reload(publish='["relay.>", "$JS.API.STREAM.NAMES"]')
    found = await make().check()
    assert found is not None
    assert "warning" not in found


@pytest.mark.parametrize(
    "config", [{"max_msgs": 5}, {"discard": DiscardPolicy.OLD}, {"max_bytes": 10_000}]
)
async def test_a_check_is_content_with_a_stream_that_keeps_all_or_refuses(
    server: NatsServer, make: Make, config: dict[str, Any]
) -> None:
    await server.put_stream(**config)
    assert await make().check() == (
        "a stream takes the subject; NATS cannot be asked for the right to publish"
    )


async def test_a_check_needs_no_more_permissions_than_a_delivery(
    server: NatsServer, make: Make
) -> None:
    await server.reload(publish="relay.>", subscribe="_INBOX.>")
    await make().check()


async def test_the_next_server_is_tried_where_one_is_away(
    server: NatsServer, make: Make, lead: Event
) -> None:
    await make(servers=f"nats://127.0.0.1:1, {server.url}").send(lead)
    assert len(server.read()) == 1
