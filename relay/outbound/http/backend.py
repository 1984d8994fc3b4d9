"""How a connection for HTTP is made: the addresses of its host, tried side by side."""

import asyncio
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress

import httpcore
from aiohappyeyeballs import AddrInfoType, start_connection

from relay.outbound.http.stream import Stream, connecting

FALLBACK_S = 0.25
"""So long an address of a host has for itself before the next is tried beside it (RFC 8305, 5)."""


class Backend(httpcore.AsyncNetworkBackend):
    """Connects by TCP, to whichever address of a host answers first."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  the base's own
        local_address: str | None = None,  # noqa: ARG002  nobody sets one
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> Stream:
        with connecting():
            async with asyncio.timeout(timeout):
                addresses = _written_out(host, port) or await _found(host, port)
                return Stream(await start_connection(addresses, happy_eyeballs_delay=FALLBACK_S))


def _written_out(host: str, port: int) -> Sequence[AddrInfoType]:
    """What needs no look-up, and so no thread for it."""
    with suppress(socket.gaierror):
        return socket.getaddrinfo(
            host.encode(), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    return []


async def _found(host: str, port: int) -> Sequence[AddrInfoType]:
    # As bytes: of a str that is no name at all, Python makes a UnicodeError.
    loop = asyncio.get_running_loop()
    return await loop.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)
