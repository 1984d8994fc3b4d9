"""How the `nats` sink logs in to a real server: TLS both ways, passwords, tokens, refusals."""

import asyncio
import traceback
from contextlib import AbstractAsyncContextManager

import pytest

from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.sinks.nats.sink import NatsSink
from tests.brokers.nats import NatsServer
from tests.sinks.nats.conftest import Make, build

NO_LOGIN = "wrong user, password, token or credentials, or credentials that have ended"
TOKEN = 'authorization {{ token: "marked/t%ken" }}\nlisten: "127.0.0.1:{port}"'


async def fault(sink: NatsSink, event: Event) -> tuple[type[SinkError], str]:
    """What a send and a check agree on, twice; no secret of these tests shows in it."""
    found = set()
    for trial in (sink.send(event), sink.check(), sink.send(event)):
        with pytest.raises(SinkError) as caught:
            await trial
        assert "marked" not in "".join(traceback.format_exception(caught.value))
        found.add((type(caught.value), caught.value.reason))
    assert len(found) == 1
    return found.pop()


async def test_withdrawn_permissions_park_the_sink(
    server: NatsServer, make: Make, lead: Event
) -> None:
    await server.put_stream()
    sink = make(servers=server.url)
    await sink.send(lead)
    await server.reload(publish="elsewhere")
    for _ in range(2):
        with pytest.raises(Misconfigured, match="the user may not publish to this subject"):
            await sink.send(lead)
    await server.reload()
    await sink.send(lead)


async def test_a_token_logs_in_and_a_wrong_one_does_not(
    server: NatsServer, make: Make, lead: Event
) -> None:
    server.kill()
    server.write(TOKEN.format(port=server.port))
    server.start()
    wrong = make(servers=f"nats://marked@127.0.0.1:{server.port}")
    assert await fault(wrong, lead) == (Misconfigured, NO_LOGIN)
    right = make(servers=f"nats://marked%2Ft%25ken@127.0.0.1:{server.port}")
    with pytest.raises(Misconfigured, match="JetStream is not enabled on this server"):
        await right.send(lead)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Authorization Violation", Misconfigured),
        ("User Authentication Expired", Misconfigured),
        ("User Authentication Revoked", Misconfigured),
        ("Account Authentication Expired", Misconfigured),
        ("Authentication Timeout", Temporary),
        ("maximum connections exceeded", Temporary),
        ("maximum account active connections exceeded", Temporary),
    ],
)
async def test_an_error_sent_before_the_server_closes_is_understood(
    lead: Event, said: str, kind: type[SinkError]
) -> None:
    async with await hanging_up(said) as server:
        sink = build(servers=f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        found, reason = await fault(sink, lead)
        await sink.close()
    assert found is kind
    assert reason != "could not connect"


async def hanging_up(said: str) -> AbstractAsyncContextManager[asyncio.Server]:
    """Speak as much of the protocol as it takes to be turned away."""

    async def turn_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"auth_required":true,"max_payload":1048576,"headers":true}\r\n')
        await reader.readline()
        writer.write(f"-ERR '{said}'\r\n".encode())
        await writer.drain()
        writer.close()

    return await asyncio.start_server(turn_away, "127.0.0.1", 0)


async def test_tls_that_the_server_does_not_offer_parks_the_sink(
    server: NatsServer, make: Make, lead: Event
) -> None:
    sink = make(servers=server.url.replace("nats:", "tls:"))
    assert await fault(sink, lead) == (Misconfigured, "the server offers no TLS")


@pytest.mark.parametrize(
    "info",
    [b"INFO {}", b' INFO {"a":1}', b'INFO {"a":NaN}', b"INFO []", b'INFO {"tls_required":true}'],
    ids=repr,
)
async def test_a_server_without_tls_gets_no_password(lead: Event, info: bytes) -> None:
    received = bytearray()

    async def impersonate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(info + b"\r\n")
        while data := await reader.read(65536):
            received.extend(data)
            writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(impersonate, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        sink = build(servers=f"tls://relay:marked@127.0.0.1:{port}")
        with pytest.raises(SinkError):
            await sink.send(lead)
        await sink.close()
    assert b"CONNECT" not in received
    assert b"marked" not in received
