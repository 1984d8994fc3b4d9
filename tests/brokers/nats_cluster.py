"""Three real nats-servers that keep streams together, of which some can be lost."""

import asyncio
import time
from pathlib import Path
from typing import Self

from nats.errors import Error as NatsError
from nats.js.api import DiscardPolicy, StreamConfig

from tests.brokers.nats import STREAM, NatsServer
from tests.ports import free_port

DEADLINE_S = 60.0

_CLUSTER = """
server_name: "{name}"
cluster {{ name: relay, listen: "127.0.0.1:{port}", routes: [{routes}] }}
"""


class NatsCluster:
    """Starts the servers, and stops those that are left."""

    def __init__(self, folder: Path) -> None:
        ports = [free_port() for _ in range(3)]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        self.servers: dict[str, NatsServer] = {}
        for number, port in enumerate(ports):
            name = f"n{number}"
            own = folder / name
            own.mkdir()
            self.servers[name] = NatsServer(own)
            more = _CLUSTER.format(name=name, port=port, routes=routes)
            self.servers[name].configure(more=more)

    def __enter__(self) -> Self:
        for server in self.servers.values():
            server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers.values():
            server.stop()

    async def put_stream(self, *, replicas: int) -> str:
        """Make the stream once the cluster can; return the name of the server that leads it."""
        config = StreamConfig(
            name=STREAM, subjects=["relay.>"], discard=DiscardPolicy.NEW, num_replicas=replicas
        )
        end_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                async with self.servers["n0"].jetstream() as js:
                    info = await js.add_stream(config)
                    if info.cluster is not None and info.cluster.leader:
                        return info.cluster.leader
            except (NatsError, TimeoutError):
                assert time.monotonic() < end_s, "the cluster makes no stream"
            await asyncio.sleep(0.1)

    def kill_all_but(self, name: str) -> None:
        for other in self.servers.keys() - {name}:
            self.servers[other].kill()
