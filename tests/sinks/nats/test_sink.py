"""The `nats` sink beyond what every sink does: its message, its limits, its settings."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from nats.js.api import DiscardPolicy

from relay.core import config_values, sample_events
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import Event
from relay.sinks.nats import sink as nats
from relay.sinks.nats.sink import NatsSink
from tests.brokers.nats import NatsServer
from tests.conftest import ManualClock

Make = Callable[..., NatsSink]


def build(**table: Any) -> NatsSink:
    full = {"name": "bus", "type": "nats", **table}
    decoded = msgspec.convert(full, nats.Settings, dec_hook=config_values.decode)
    return nats.build(decoded, ManualClock())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def make(server: NatsServer) -> AsyncIterator[Make]:
    await server.put_stream()
    made: list[NatsSink] = []

    def make(**table: Any) -> NatsSink:
        made.append(build(**{"servers": server.url, **table}))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


async def error_of(sink: NatsSink, event: Event) -> SinkError:
    with pytest.raises(SinkError) as caught:
        await sink.send(event)
    return caught.value


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


async def test_a_subject_without_end_is_refused(make: Make, lead: Event) -> None:
    document = lead.document() | {"event": "x" * 5000}
    error = await error_of(make(), replace(lead, body=json.dumps(document).encode()))
    assert type(error) is Refused
    assert error.reason == (
        "the template of `subject` fails on this event: the result is longer than 1024 bytes"
    )


async def test_a_subject_that_needs_what_is_missing_is_refused(make: Make, lead: Event) -> None:
    sink = make(subject="relay.{{ data.email }}", events=["lead.captured"])
    error = await error_of(sink, replace(lead, body=b'{"id":"evt_1"}'))
    assert type(error) is Refused
    assert error.reason.startswith("the template of `subject` fails on this event: ")


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


async def test_a_frozen_server_gets_nothing_later_that_was_given_up(
    server: NatsServer, make: Make, lead: Event
) -> None:
    sink = make(subject="relay.fixed")
    await sink.send(lead)
    server.freeze()
    # More than the sockets' buffers hold, so that some of it is still here.
    events = [replace(lead, id=f"evt_{n}", body=b"x" * 900_000) for n in range(12)]
    sending = [asyncio.create_task(sink.send(event)) for event in events]
    await asyncio.wait(sending, timeout=0.2)
    for task in sending:
        task.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait(sending)
    server.thaw()
    await sink.send(replace(lead, id="evt_after"))
    assert len(server.read()) < len(events)


async def test_a_loss_ends_what_waits_at_once(server: NatsServer, make: Make, lead: Event) -> None:
    sink = make()
    await sink.send(lead)
    server.freeze()
    sending = [asyncio.create_task(sink.send(replace(lead, id=f"e{n}"))) for n in range(20)]
    await asyncio.sleep(0.05)
    server.kill()
    async with asyncio.timeout(5):
        errors = await asyncio.gather(*sending, return_exceptions=True)
    assert {(type(error), str(error)) for error in errors} == {
        (Temporary, "the connection was lost")
    }


async def test_the_next_server_is_tried_where_one_is_away(
    server: NatsServer, make: Make, lead: Event
) -> None:
    await make(servers=f"nats://127.0.0.1:1, {server.url}").send(lead)
    assert len(server.read()) == 1


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"servers": "http://marked.example"}, "servers: expected nats:// or tls:// addresses"),
        ({"servers": "nats://marked:password@"}, "servers: expected"),
        ({"servers": "nats://marked:70000"}, "servers: expected"),
        ({"servers": "nats://a,,nats://b"}, "servers: expected"),
        ({"subject": "relay.>"}, "subject: does not fit: expected words with dots between"),
        ({"subject": "relay..x"}, "subject: does not fit: expected words"),
        ({"subject": "relay.{{ nothing }}"}, "subject: line 1: no such name: nothing"),
        ({"subject": "relay.{{ data.nix }}"}, "subject: line 1: nix is missing in this event"),
        ({"ca_file": "/nowhere"}, "ca_file: cannot be read: No such file"),
        ({"client_key_file": "/nowhere"}, "client_key_file: needs client_cert_file"),
        ({"client_cert_file": "/nowhere"}, "client_cert_file, client_key_file: cannot be read"),
        ({"credentials_file": "/nowhere"}, "credentials_file: cannot be read"),
        ({"credentials_file": __file__}, "credentials_file: holds no user JWT with an NKEY"),
    ],
)
def test_a_wrong_value_is_named_and_not_repeated(table: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}") as caught:
        build(**{"servers": "nats://127.0.0.1", **table})
    assert "marked" not in str(caught.value)


def test_the_message_can_be_shown_without_sending_it() -> None:
    shown = build(servers="127.0.0.1").render(sample_events.event("video.ready"))
    assert shown["subject"] == "relay.video.ready"
    assert shown["headers"]["Nats-Msg-Id"] == "evt_sample:sample:bus"
