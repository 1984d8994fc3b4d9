"""The `redis` sink beyond what every sink does: its entry, its limits, its settings."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from relay.core import config_values, sample_events
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import Event
from relay.sinks.redis import sink as redis
from relay.sinks.redis.sink import RedisSink, _knows_idempotency, _server
from tests.brokers.redis import RedisServer
from tests.conftest import ManualClock

Make = Callable[..., RedisSink]


def build(**table: Any) -> RedisSink:
    full = {"name": "bus", "type": "redis", **table}
    decoded = msgspec.convert(full, redis.Settings, dec_hook=config_values.decode)
    return redis.build(decoded, ManualClock())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def make(server: RedisServer) -> AsyncIterator[Make]:
    made: list[RedisSink] = []

    def make(**table: Any) -> RedisSink:
        made.append(build(**{"url": server.url, **table}))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


async def error_of(sink: RedisSink, event: Event) -> SinkError:
    with pytest.raises(SinkError) as caught:
        await sink.send(event)
    return caught.value


async def test_the_entry_carries_the_event(server: RedisServer, make: Make, lead: Event) -> None:
    answer = await make().send(lead)
    assert answer.excerpt.partition("-")[0].isdigit()
    assert server.read() == [
        {
            b"id": b"evt_lead",
            b"event": b"lead.captured",
            b"source": b"main",
            b"received-at": b"2026-03-02T09:30:00.000Z",
            b"body": lead.body,
        }
    ]


async def test_cloudevents_are_fields_beside_the_body(
    server: RedisServer, make: Make, lead: Event
) -> None:
    await make(format="cloudevents").send(replace(lead, id="evt 1%"))
    (fields,) = server.read()
    assert (fields[b"id"], fields[b"ce_id"]) == (b"evt 1%", b"evt 1%")
    assert (fields[b"ce_type"], fields[b"body"]) == (b"lead.captured", lead.body)


async def test_the_stream_can_follow_from_the_event(
    server: RedisServer, make: Make, lead: Event
) -> None:
    sink = make(stream="relay:{{ data.video.id }}", events=["lead.captured"])
    await sink.send(lead)
    video = lead.document()["data"]["video"]["id"]
    assert len(server.read(f"relay:{video}")) == 1


async def test_batches_share_one_connection(server: RedisServer, make: Make, lead: Event) -> None:
    sink = make()
    events = [replace(lead, id=f"evt_{n}") for n in range(300)]
    await asyncio.gather(*(sink.send_batch(events[n::10]) for n in range(10)))
    assert len({fields[b"id"] for fields in server.read()}) == 300
    assert server.connections() == 1


def test_no_two_batches_are_in_flight_at_once() -> None:
    config_values = build(url="redis://127.0.0.1")._settings
    assert config_values.slots() // config_values.batch() == 1


async def test_outcomes_and_entries_are_in_the_order_of_the_events(
    server: RedisServer, make: Make, lead: Event
) -> None:
    events = [replace(lead, id=f"evt_{n}") for n in range(40)]
    # What is over this size goes by itself, and here it is taken.
    events[7] = replace(events[7], body=b"x" * (1 << 20) + b"x")
    outcomes = await make().send_batch(events)
    with closing(server.admin()) as admin:
        entries = {key.decode(): fields[b"id"].decode() for key, fields in admin.xrange("relay")}
    assert list(entries.values()) == [event.id for event in events]
    assert [getattr(each, "excerpt", None) for each in outcomes] == list(entries)


async def test_a_failing_event_fails_alone(server: RedisServer, make: Make, lead: Event) -> None:
    with closing(server.admin()) as admin:
        admin.set("relay:second", "no stream")
    sink = make(stream="relay:{{ source }}")
    sources = ["main", "second", "main"]
    outcomes = await sink.send_batch([replace(lead, source=source) for source in sources])
    assert [type(each) for each in outcomes] == [SinkResponse, Misconfigured, SinkResponse]
    assert len(server.read("relay:main")) == 2


async def test_an_event_that_is_too_large_is_refused_alone(
    server: RedisServer, make: Make, lead: Event
) -> None:
    server.configure(proto_max_bulk_len=1 << 20)
    sink = make()
    large = replace(lead, body=b"x" * (1 << 20) + b"x")
    found = await sink.send_batch([lead, large, replace(lead, id="evt_2")])
    assert type(found[1]) is Refused
    assert str(found[1]) == "1048577 bytes are more than the server's proto-max-bulk-len"
    assert [fields[b"id"] for fields in server.read()] == [b"evt_lead", b"evt_2"]


async def test_replies_to_an_abandoned_batch_do_not_answer_the_next(
    server: RedisServer, make: Make, lead: Event
) -> None:
    sink = make(timeout="1s")
    await sink.send(lead)
    server.freeze()
    outcomes = await sink.send_batch([replace(lead, id=f"evt_frozen_{n}") for n in range(3)])
    assert [str(each) for each in outcomes] == ["no answer within 1 s"] * 3
    assert [type(each) for each in outcomes] == [Temporary] * 3
    server.thaw()
    answer = await sink.send(replace(lead, id="evt_next"))
    with closing(server.admin()) as admin:
        entries = dict(admin.xrange("relay"))
    assert entries[answer.excerpt.encode()][b"id"] == b"evt_next"


async def test_replies_to_a_cancelled_batch_do_not_answer_the_next(
    lead: Event,
) -> None:
    connections = 0
    all_sent = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer all that is needed, but of the first connection's XADDs only one."""
        nonlocal connections
        connections += 1
        entries = 0
        async for line in reader:
            if line == b"SETINFO\r\n":
                writer.write(b"+OK\r\n")
            elif line == b"INFO\r\n":
                writer.write(b"$19\r\nredis_version:7.0.0\r\n")
            elif line == b"XADD\r\n":
                entries += 1
                if connections > 1 or entries == 1:
                    writer.write(b"$3\r\n%d-%d\r\n" % (connections, entries))
                if entries == 3:
                    all_sent.set()
        writer.close()

    destination = await asyncio.start_server(serve, "127.0.0.1", 0)
    sink = build(url=f"redis://127.0.0.1:{destination.sockets[0].getsockname()[1]}")
    events = [replace(lead, id=f"evt_{n}") for n in range(3)]
    given_up = asyncio.create_task(sink.send_batch(events))
    async with asyncio.timeout(5):
        await all_sent.wait()
    await asyncio.sleep(0.02)  # for the sink to read the one reply
    given_up.cancel()
    await asyncio.wait({given_up})
    async with asyncio.timeout(5):
        assert await sink.send(lead) == SinkResponse(excerpt="2-1")
    await sink.close()
    destination.close()
    await destination.wait_closed()


async def test_after_a_given_up_batch_the_server_is_asked_anew_whether_it_knows_the_id(
    server: RedisServer, make: Make, lead: Event
) -> None:
    sink = make(timeout="1s")
    sink._idempotent = True  # as if there had been a newer server in its place
    server.freeze()
    await error_of(sink, lead)
    server.thaw()
    await sink.send(replace(lead, id="evt_next"))


async def test_since_version_8_6_the_server_gets_the_id(
    server: RedisServer, make: Make, lead: Event
) -> None:
    sink = make()
    sink._idempotent = True
    with closing(server.admin()) as admin, admin.monitor() as monitor:
        # This server does not know the words, which is another failure that passes.
        assert type(await error_of(sink, lead)) is Temporary
        seen = next(each["command"] for each in monitor.listen() if "XADD" in each["command"])
    assert seen.startswith("XADD relay IDMP bus evt_lead:main * id evt_lead ")
    await sink.send(lead)


@pytest.mark.parametrize(
    ("version", "known"), [("8.6.0", True), ("8.10.1", True), ("7.0.15", False), ("8.5.9", False)]
)
async def test_the_version_decides(
    make: Make, monkeypatch: pytest.MonkeyPatch, version: str, known: bool
) -> None:
    async def info(_: str) -> dict[str, str]:
        return {"redis_version": version}

    sink = make()
    monkeypatch.setattr(sink._client, "info", info)
    assert _knows_idempotency(await _server(sink._client)) is known


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"url": "http://marked.example"}, "url: expected redis:// or rediss:// and a host"),
        ({"url": "redis://:marked@"}, "url: expected redis://"),
        ({"url": "redis://marked:70000"}, "url: expected redis://"),
        ({"url": "redis://a/marked"}, "url: expected nothing but the number"),
        ({"url": "rediss://a?ssl_cert_reqs=none"}, "url: expected nothing but"),
        ({"ca_file": "/nowhere"}, "url: expected rediss://"),
        ({"url": "rediss://a", "ca_file": "/nowhere"}, "ca_file: cannot be read: No such file"),
        ({"url": "rediss://a", "client_key_file": "/x"}, "client_key_file: needs client_cert_file"),
        ({"url": "rediss://a", "client_cert_file": "/x"}, "client_cert_file, client_key_file: "),
        ({"stream": ""}, "stream: is empty"),
        ({"stream": "{{ nothing }}"}, "stream: line 1: no such name: nothing"),
    ],
)
def test_a_wrong_value_is_named_and_not_repeated(table: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}") as caught:
        build(**{"url": "redis://127.0.0.1", **table})
    assert "marked" not in str(caught.value)


def test_the_message_can_be_shown_without_sending_it() -> None:
    shown = build(url="redis://127.0.0.1").render(sample_events.event("video.ready"))
    assert shown["stream"] == "relay"
    assert shown["fields"]["id"] == "evt_sample"
    assert json.loads(shown["body"])["event"] == "video.ready"
