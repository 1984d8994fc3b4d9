"""How the `nats` sink logs in with a .creds file to a real server in operator mode."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import nkeys
import pytest

from relay.core.errors import Misconfigured, SinkError
from relay.core.event import Event
from relay.sinks.nats.sink import NatsSink
from tests.brokers.nats_operator import OperatorServer, Party
from tests.sinks.conftest import Closing
from tests.sinks.nats.conftest import build
from tests.sinks.nats.test_security import NO_LOGIN, fault
from tests.stub_server import DEADLINE_S, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OperatorServer]:
    server = OperatorServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "relay.creds"


@pytest.fixture
async def sink(server: OperatorServer, file: Path, closing: Closing) -> NatsSink:
    """A sink whose credentials are good at first."""
    file.write_text(server.credentials(server.user()))
    await server.put_stream()
    return closing(build(servers=server.url, credentials_file=str(file)))


async def test_credentials_log_in(server: OperatorServer, sink: NatsSink, lead: Event) -> None:
    await sink.check()
    await sink.send(lead)
    assert len(server.read()) == 1


async def test_credentials_may_have_been_written_on_windows(
    server: OperatorServer, sink: NatsSink, lead: Event, file: Path
) -> None:
    file.write_text(server.credentials(server.user()), newline="\r\n")
    await sink.send(lead)


async def test_credentials_that_are_revoked_park_until_there_are_others(
    server: OperatorServer, sink: NatsSink, lead: Event, file: Path
) -> None:
    user = server.user()
    file.write_text(server.credentials(user))
    await sink.send(lead)
    await server.revoke(user)
    await turned_away(sink, lead, server)
    file.write_text(server.credentials(server.user()))
    await sink.send(lead)


async def test_credentials_that_expire_park_also_a_connection_that_is_open(
    server: OperatorServer, sink: NatsSink, lead: Event, file: Path
) -> None:
    file.write_text(server.credentials(server.user(), ends_s=2))
    await sink.send(lead)
    await turned_away(sink, lead, server)


async def turned_away(sink: NatsSink, event: Event, server: OperatorServer) -> None:
    """Wait until the server has ended the connection, and lets in no other."""
    await until(lambda: server.connections() == 0, what="the end of the connection")
    async with asyncio.timeout(DEADLINE_S):
        # A login in the very second of the end is taken, and dropped at once.
        while NO_LOGIN not in await refusal(sink, event):
            await asyncio.sleep(0.05)
    assert await fault(sink, event) == (Misconfigured, NO_LOGIN)


async def refusal(sink: NatsSink, event: Event) -> str:
    try:
        await sink.send(event)
    except SinkError as error:
        return error.reason
    return "none"


async def test_credentials_of_another_account_are_misconfigured(
    server: OperatorServer, sink: NatsSink, lead: Event, file: Path
) -> None:
    stranger = Party(nkeys.PREFIX_BYTE_ACCOUNT)
    file.write_text(server.credentials(server.user(), by=stranger))
    assert await fault(sink, lead) == (Misconfigured, NO_LOGIN)


async def test_credentials_with_another_users_seed_are_misconfigured(
    server: OperatorServer, sink: NatsSink, lead: Event, file: Path
) -> None:
    user = server.user()
    file.write_text(server.credentials(user).replace(user.seed, server.user().seed))
    assert await fault(sink, lead) == (Misconfigured, NO_LOGIN)


async def test_credentials_that_vanish_are_named(
    server: OperatorServer, sink: NatsSink, lead: Event, file: Path
) -> None:
    file.unlink()
    reason = "credentials_file: cannot be read: No such file or directory"
    assert await fault(sink, lead) == (Misconfigured, reason)
    file.write_text(server.credentials(server.user()))
    await sink.send(lead)
