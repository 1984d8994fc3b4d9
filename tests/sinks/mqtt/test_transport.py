"""What MQTT packets travel over, on the loop that the relay runs on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from zmqtt import MQTTDisconnectedError

from relay.sinks.mqtt.connection import Transport


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Transport, asyncio.StreamReader, list[Any]]]:
    """A transport, the far end's side of it, and what has gone wrong in the loop."""
    wrong: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    peers: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(lambda *peer: peers.put_nowait(peer), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        far, back = await peers.get()
        yield Transport(reader, writer), far, wrong
        writer.transport.abort()
        back.transport.abort()


async def test_packets_of_one_turn_arrive_in_their_order() -> None:
    async with connected() as (transport, far, _):
        for packet in (b"a", b"b", b"c"):
            await transport.write(packet)
        assert await far.readexactly(3) == b"abc"
        await transport.write(b"d")
        await transport.close()
        assert await far.read() == b"d"


async def test_a_packet_for_a_connection_that_has_just_been_lost_is_dropped() -> None:
    async with connected() as (transport, _, wrong):
        # As when the peer resets it: the loop knows, and nobody has read yet.
        transport._writer.transport.abort()
        await asyncio.sleep(0.01)
        await transport.write(b"a")
        await asyncio.sleep(0.01)
        await transport.write(b"b")
        await transport.close()
        assert wrong == []
        assert not transport.is_connected


async def test_what_came_before_the_connection_was_lost_is_still_read() -> None:
    async with connected() as (transport, _, wrong):
        transport._reader.feed_data(b"an answer")
        transport._writer.transport.abort()
        await asyncio.sleep(0.01)
        assert await transport.read(9) == b"an answer"
        with pytest.raises(MQTTDisconnectedError):
            await transport.read(9)
        assert wrong == []
