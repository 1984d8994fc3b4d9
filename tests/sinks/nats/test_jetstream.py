"""What a real JetStream refuses, and what becomes of the event: full, too large, sealed, absent."""

import pytest
from msgspec.structs import replace

from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import Event
from relay.sinks.nats import connection as nats_connection
from tests.brokers.nats import STREAM, NatsServer
from tests.sinks.nats.test_sink import Make, build, error_of, make, server

__all__ = ["make", "server"]  # fixtures


async def test_a_full_stream_takes_it_when_there_is_room(
    server: NatsServer, make: Make, lead: Event
) -> None:
    await server.put_stream(max_bytes=1)
    sink = make()
    error = await error_of(sink, lead)
    assert (type(error), error.status) == (Temporary, 503)
    assert "full" in error.reason
    await server.put_stream()
    await sink.send(lead)
    assert len(server.read()) == 1


async def test_a_full_stream_refuses_messages_and_drops_none(
    server: NatsServer, make: Make, lead: Event
) -> None:
    await server.put_stream(max_msgs=1)
    sink = make()
    await sink.send(lead)
    error = await error_of(sink, replace(lead, id="evt_next"))
    assert (type(error), error.status) == (Temporary, 503)
    assert [(message.headers or {})["relay-id"] for message in server.read()] == [lead.id]


async def test_a_message_that_is_too_large_for_the_stream_is_refused_alone(
    server: NatsServer, make: Make, lead: Event
) -> None:
    await server.put_stream(max_msg_size=5000)
    sink = make(subject="relay.fixed")
    error = await error_of(sink, replace(lead, id="evt_large", body=b"x" * 5000))
    assert (type(error), error.reason) == (
        Refused,
        "10054: larger than the stream's max_msg_size",
    )
    await sink.send(lead)
    assert len(server.read()) == 1


async def test_a_sealed_stream_parks(server: NatsServer, make: Make, lead: Event) -> None:
    await server.put_stream(sealed=True)
    error = await error_of(make(), lead)
    assert (type(error), error.reason) == (Misconfigured, "10109: the stream is sealed")


async def test_a_stream_that_is_gone_parks_until_it_is_back(
    server: NatsServer, make: Make, lead: Event
) -> None:
    sink = make()
    async with server.jetstream() as js:
        await js.delete_stream(STREAM)
    error = await error_of(sink, lead)
    assert (type(error), error.reason) == (
        Misconfigured,
        "no stream takes the subject relay.{{ event }}",
    )
    await server.put_stream()
    await sink.send(lead)


async def test_the_largest_message_is_taken_and_a_larger_one_refused(
    server: NatsServer, make: Make, lead: Event
) -> None:
    sink = make(subject="relay.fixed")
    request = sink._message(replace(lead, body=b""))
    room = (1 << 20) - nats_connection._size(request)
    error = await error_of(sink, replace(lead, body=b"x" * (room + 1)))
    assert type(error) is Refused
    assert error.reason == "1048577 bytes are more than the server's max_payload"
    await sink.send(replace(lead, body=b"x" * room))
    assert server.connections("all") == 1


async def test_a_server_without_jetstream_is_named(server: NatsServer, lead: Event) -> None:
    text = (server.folder / "nats.conf").read_text()
    lines = [line for line in text.splitlines() if "jetstream" not in line]
    server.kill()
    (server.folder / "nats.conf").write_text("\n".join(lines))
    server.start()
    sink = build(servers=server.url)
    with pytest.raises(Misconfigured, match="JetStream is not enabled"):
        await sink.check()
    assert type(await error_of(sink, lead)) is Misconfigured
    await sink.close()
