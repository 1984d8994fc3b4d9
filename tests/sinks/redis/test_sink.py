"""The `redis` sink beyond what every sink does: its entry, its limits, its settings."""

import asyncio
from contextlib import closing

import pytest
from msgspec.structs import replace

from relay.core.delivery import SinkResponse
from relay.core.errors import Temporary
from relay.core.event import Event
from relay.sinks.redis.sink import _knows_idempotency, _server_info
from tests.brokers.redis import RedisServer
from tests.sinks.conformance import error_of
from tests.sinks.redis.conftest import Make, build


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
    assert _knows_idempotency(await _server_info(sink._client)) is known
