"""How the `nats` sink logs in to a real server: TLS both ways, passwords, tokens, refusals."""

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.sinks.nats.sink import NatsSink
from tests.brokers.authority import Authority
from tests.brokers.nats import NatsServer
from tests.sinks.nats.test_sink import build

Make = Callable[..., NatsSink]

NO_LOGIN = "wrong user, password, token or credentials, or credentials that have ended"
UNTRUSTED = "the server's TLS certificate does not verify: unable to get local issuer certificate"
UNPROVED = "the server does not accept our TLS certificate"
TOKEN = 'authorization {{ token: "marked/t%ken" }}\nlisten: "127.0.0.1:{port}"'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[NatsSink] = []

    def make(**table: Any) -> NatsSink:
        made.append(build(**table))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


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


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"password": "another"}, NO_LOGIN),
        (
            {"subscribe": "elsewhere"},
            "the user may not subscribe to _INBOX.>, where replies arrive",
        ),
    ],
)
async def test_a_login_without_rights_says_which(
    server: NatsServer, make: Make, lead: Event, config: dict[str, str], reason: str
) -> None:
    await server.put_stream()
    await server.reload(**config)
    sink = make(servers=server.url)
    assert await fault(sink, lead) == (Misconfigured, reason)
    await server.reload()
    await sink.send(lead)


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
    make: Make, lead: Event, said: str, kind: type[SinkError]
) -> None:
    async with await hanging_up(said) as server:
        port = server.sockets[0].getsockname()[1]
        found, reason = await fault(make(servers=f"nats://127.0.0.1:{port}"), lead)
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


async def test_tls_is_required(make: Make, server: NatsServer, lead: Event) -> None:
    sink = make(servers=server.url.replace("nats:", "tls:"))
    assert await fault(sink, lead) == (Misconfigured, "the server offers no TLS")


@pytest.mark.parametrize(
    "info",
    [b"INFO {}", b' INFO {"a":1}', b'INFO {"a":NaN}', b"INFO []", b'INFO {"tls_required":true}'],
    ids=repr,
)
async def test_a_server_without_tls_gets_no_password(make: Make, lead: Event, info: bytes) -> None:
    received = bytearray()

    async def impersonate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(info + b"\r\n")
        while data := await reader.read(65536):
            received.extend(data)
            writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(impersonate, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SinkError):
            await make(servers=f"tls://relay:marked@127.0.0.1:{port}").send(lead)
    assert b"CONNECT" not in received
    assert b"marked" not in received


@pytest.fixture
async def secured(server: NatsServer, tmp_path: Path) -> Authority:
    """Have the server demand certificates of this authority, and show one."""
    authority = Authority(tmp_path / "tls")
    pair = authority.issue("server")
    files = f'cert_file: "{pair}", key_file: "{pair}", ca_file: "{authority.file}"'
    server.configure(more=f"tls {{ {files}, verify: true }}")
    await server.put_stream()
    server.kill()
    server.start()
    return authority


async def test_tls_is_spoken_with_certificates_on_both_sides(
    server: NatsServer, make: Make, lead: Event, secured: Authority
) -> None:
    client = secured.issue("client")
    sink = make(servers=server.url, ca_file=str(secured.file), client_cert_file=str(client))
    await sink.check()
    await sink.send(lead)


async def test_a_server_with_a_certificate_of_another_authority_is_refused(
    server: NatsServer, make: Make, lead: Event, secured: Authority, tmp_path: Path
) -> None:
    other, client = Authority(tmp_path / "other"), secured.issue("client")
    sink = make(servers=server.url, ca_file=str(other.file), client_cert_file=str(client))
    assert await fault(sink, lead) == (Misconfigured, UNTRUSTED)


async def test_a_required_client_certificate_that_is_missing_is_reported_every_time(
    server: NatsServer, make: Make, lead: Event, secured: Authority
) -> None:
    # A reset often overtakes the reason, so that one trial shows nothing.
    for _ in range(10):
        sink = make(servers=server.url, ca_file=str(secured.file))
        assert await fault(sink, lead) == (Misconfigured, UNPROVED)


async def test_a_client_certificate_of_another_authority_is_misconfigured(
    server: NatsServer, make: Make, lead: Event, secured: Authority, tmp_path: Path
) -> None:
    client = Authority(tmp_path / "other").issue("client")
    sink = make(servers=server.url, ca_file=str(secured.file), client_cert_file=str(client))
    assert await fault(sink, lead) == (Misconfigured, UNPROVED)
