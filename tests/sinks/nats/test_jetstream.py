"""What a real JetStream refuses, and what becomes of the event: full, sealed, too large, absent."""

import pytest
from msgspec.structs import replace

from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import Event
from relay.sinks.nats import connection as nats_connection
from tests.brokers.nats import NatsServer
from tests.sinks.conformance import error_of
from tests.sinks.nats.conftest import Make, build


async def test_a_full_stream_refuses_messages_and_drops_none(
    server: NatsServer, make: Make, lead: Event
) -> None:
    await server.put_stream(max_msgs=1)
    sink = make()
    await sink.send(lead)
    error = await error_of(sink, replace(lead, id="evt_next"))
    assert (type(error), error.status) == (Temporary, 503)
    assert [(message.headers or {})["relay-id"] for message in server.read()] == [lead.id]


async def test_a_sealed_stream_parks(server: NatsServer, make: Make, lead: Event) -> None:
    await server.put_stream(sealed=True)
    error = await error_of(make(), lead)
    assert (type(error), error.reason) == (Misconfigured, "10109: the stream is sealed")


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
