"""A real nats-server with JetStream and one stream, and a consumer that reads all of it."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from urllib.request import urlopen

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StreamConfig

from tests.brokers.program import Program
from tests.ports import free_port

T = TypeVar("T")

STREAM = "RELAY"
PASSWORD = "marked:p%ss/word"

CONFIG = """
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{monitor}"
jetstream {{ store_dir: "{folder}" }}
accounts {{ A: {{
  jetstream: enabled
  users: [
    {{ user: admin, password: admin }}
    {{ user: relay, password: "{password}", permissions: {{
      publish: {publish}, subscribe: "{subscribe}"
    }} }}
  ]
}} }}
{more}
"""


class NatsServer(Program):
    """`url` logs in as the user `relay`, whose rights can be changed."""

    name = "nats-server"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.monitor = free_port()
        self.url = f"nats://relay:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}"
        self.configure()

    def command(self) -> list[str]:
        return [self.name, "-c", str(self.folder / "nats.conf")]

    def configure(
        self, *, password: str = PASSWORD, publish: str = ">", subscribe: str = ">", more: str = ""
    ) -> None:
        """Write the config; a server that runs takes it up with `reload`."""
        self.write(
            CONFIG.format(
                port=self.port,
                monitor=self.monitor,
                folder=self.folder,
                password=password,
                publish=publish if publish.startswith("[") else f'"{publish}"',
                subscribe=subscribe,
                more=more,
            )
        )

    def write(self, config: str) -> None:
        (self.folder / "nats.conf").write_text(config)

    async def reload(self, **config: str) -> None:
        self.configure(**config)
        await self.reread()

    async def reread(self) -> None:
        """Have the server reload its config file, and wait until it has."""
        before = self._varz()["config_load_time"]
        self.signal(signal.SIGHUP)
        async with asyncio.timeout(5):
            while self._varz()["config_load_time"] == before:
                await asyncio.sleep(0.01)

    async def put_stream(self, **changed: Any) -> None:
        """Make the stream, or change it; it is full as an operator should have it: DiscardNew."""
        config: dict[str, Any] = {"subjects": ["relay.>"], "max_bytes": -1, "max_msg_size": -1}
        config |= {"discard": DiscardPolicy.NEW} | changed
        stream = StreamConfig(name=STREAM, **config)
        async with self.jetstream() as js:
            known = {each.config.name for each in await js.streams_info()}
            await (js.update_stream if STREAM in known else js.add_stream)(stream)

    @asynccontextmanager
    async def jetstream(self) -> AsyncIterator[JetStreamContext]:
        async with await self.admin() as connection:
            yield connection.jetstream()

    async def admin(self) -> Client:
        """Connect as one who may do everything."""
        url = f"nats://admin:admin@127.0.0.1:{self.port}"
        return await nats.connect(url, name="admin", allow_reconnect=False)

    def read(self) -> list[Msg]:
        """Consume the stream from its first message to its last."""
        return _elsewhere(self._read)

    def connections(self, state: str = "open") -> int:
        """Count the relay's connections; state `all` counts those that were, too."""
        with urlopen(f"http://127.0.0.1:{self.monitor}/connz?state={state}") as answer:
            found = json.load(answer)["connections"]
        return len([each for each in found if each.get("name") == "relay"])

    def _varz(self) -> dict[str, Any]:
        with urlopen(f"http://127.0.0.1:{self.monitor}/varz") as answer:
            return dict(json.load(answer))

    async def _read(self) -> list[Msg]:
        async with self.jetstream() as js:
            count = (await js.stream_info(STREAM)).state.messages
            if not count:
                return []
            consumer = await js.subscribe(">", stream=STREAM, ordered_consumer=True)
            return [await consumer.next_msg(timeout=5) for _ in range(count)]


def _elsewhere(read: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it on a loop of its own, for callers that cannot wait on theirs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, read()).result()
