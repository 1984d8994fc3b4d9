"""A real relay whose listening sockets stay open in another process, as with systemd.

Between two relays, connections wait in the socket's queue. A stopping relay ends connections in use
with a last response that says so, and closes idle ones; a proxy must repeat a request that it wrote
on an idle connection in the same instant, which is harmless: the relay recognises duplicates.
"""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from tests.guarantees.process import Relay

BACKLOG = 4096


class ActivatedRelay(Relay):
    """Started with sockets that live on; `port` is the public one's."""

    async def restart(self) -> None:
        """Drain and start again, as `systemctl restart` does."""
        assert await self.stop() == 0
        await self.start()


@asynccontextmanager
async def relay(
    folder: Path,
    *,
    sinks: str,
    server: str = "",
    names: Sequence[str] = ("public",),
    starts: bool = True,
) -> AsyncIterator[ActivatedRelay]:
    """Open a socket for each name and start a relay on them; `names` as in a socket unit."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(listening()) for _ in names]
        handed = ActivatedRelay(
            folder,
            sinks=sinks,
            server=server,
            environ={"LISTEN_FDNAMES": ":".join(names)},
            handed=[each.fileno() for each in sockets],
        )
        for name, each in zip(names, sockets, strict=True):
            # Differs from the config: the handed-over socket takes precedence.
            match name:
                case "admin":
                    handed.admin_port = each.getsockname()[1]
                case _:
                    handed.port = each.getsockname()[1]
        async with handed:
            if starts:
                await handed.start()
            yield handed


def listening(backlog: int = BACKLOG) -> socket.socket:
    """A socket on a free port of 127.0.0.1, listening."""
    opened = socket.socket()
    opened.bind(("127.0.0.1", 0))
    opened.listen(backlog)
    return opened
