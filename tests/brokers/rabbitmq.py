"""A real rabbitmq-server with its own epmd, and a consumer that reads all of a queue."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.brokers.authority import Authority
from tests.brokers.program import Program
from tests.ports import free_port

QUEUE = "relay"
PASSWORD = "marked:p%ss/word"

_UNWRAPPED = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Debian's program on the path changes the user, and stands between us and the server."""

_NODE = "relay@localhost"
# Its schedulers would wait for work by spinning, which the other tests' processors pay for; more
# than one only makes its start slower.
_ERLANG = (
    "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
)

CONFIG = """
management.tcp.ip = 127.0.0.1
management.tcp.port = {management}
log.console.level = warning
listeners.ssl.default = 127.0.0.1:{tls}
ssl_options.cacertfile = {authority}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {certificate}
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
"""


class RabbitMq(Program):
    """`url` logs in as the user `relay`, whose rights can be changed; `tls_url` by certificate too.

    The authority vouches for the server, and for the clients that the server lets in by TLS.
    """

    name = "rabbitmq-server"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._management = free_port()
        self._ports = {"ERL_EPMD_PORT": free_port(), "RABBITMQ_DIST_PORT": free_port()}
        self.limited = False
        self._epmd: subprocess.Popen[bytes] | None = None
        login = f"relay:{quote(PASSWORD, safe='')}"
        self.url = f"amqp://{login}@127.0.0.1:{self.port}"
        tls = free_port()
        self.tls_url = f"amqps://{login}@127.0.0.1:{tls}"
        self.authority = Authority(folder / "tls")
        (folder / "rabbitmq.conf").write_text(
            CONFIG.format(
                management=self._management,
                tls=tls,
                authority=self.authority.file,
                certificate=self.authority.issue("server"),
            )
        )
        (folder / "plugins").write_text("[rabbitmq_management].")

    def command(self) -> list[str]:
        program = str(_UNWRAPPED) if _UNWRAPPED.exists() else self.name
        return ["env", *(f"{name}={value}" for name, value in self._environment().items()), program]

    def start(self) -> None:
        if self._epmd is None:
            port = str(self._ports["ERL_EPMD_PORT"])
            self._epmd = subprocess.Popen(["epmd", "-port", port, "-address", "127.0.0.1"])
        super().start()
        self.put_user()

    def stop(self) -> None:
        super().stop()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def put_user(self, *, password: str = PASSWORD, write: str = ".*") -> None:
        """Make the user `relay`, or change what it may do."""
        self.manage("PUT", "users/relay", {"password": password, "tags": ""})
        rights = {"configure": "", "write": write, "read": ""}
        self.manage("PUT", "permissions/%2F/relay", rights)

    def evaluate(self, expressions: str) -> None:
        """Evaluate Erlang in the server; rabbitmqctl takes a second of the processor to do it."""
        done = subprocess.run(
            ["erl_call", "-sname", _NODE, "-c", self._cookie, "-e"],
            input=f"{expressions}, done.\n",
            env=os.environ | self._environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.stdout == "{ok, done}", f"{expressions}: {done.stdout}{done.stderr}"

    def let_memory(self, share: float) -> None:
        """Set the memory's high watermark: below what the server needs, it blocks publishers."""
        self.evaluate(f"vm_memory_monitor:set_vm_memory_high_watermark({share:f})")

    def limit(self, size: int | None) -> None:
        """Bound the size of messages on new channels; None is the server's own bound."""
        value = 134_217_728 if size is None else size
        # It is read from the application's environment when a channel opens.
        env = f"application:set_env(rabbit, max_message_size, {value})"
        self.evaluate(f"{env}, persistent_term:put(max_message_size, {value})")
        self.limited = size is not None

    async def put_queue(self, name: str = QUEUE, **arguments: Any) -> None:
        """Make the queue anew, empty."""
        async with self.channel() as channel:
            await channel.queue_delete(name)
            await channel.declare_queue(name, durable=True, arguments=arguments)
        if arguments.get("x-queue-type") == "quorum":
            # RabbitMQ 3.10 writes the queue's name to disk half a second later. If it is killed
            # before that, it forgets the queue: it accepts messages, but confirms none
            # (rabbitmq/ra, #443).
            await asyncio.to_thread(self.evaluate, "dets:sync(ra_directory_reverse)")

    async def drop_queue(self, name: str = QUEUE) -> None:
        async with self.channel() as channel:
            await channel.queue_delete(name)

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[AbstractChannel]:
        url = f"amqp://guest:guest@127.0.0.1:{self.port}"
        connection = await aio_pika.connect(url)
        async with connection:
            yield await connection.channel(on_return_raises=True)

    def read(self, name: str = QUEUE) -> list[AbstractIncomingMessage]:
        """Take everything out of the queue."""
        with ThreadPoolExecutor(1) as pool:  # a loop of its own, for callers that cannot wait
            return pool.submit(asyncio.run, self._read(name)).result()

    async def _read(self, name: str) -> list[AbstractIncomingMessage]:
        found = []
        async with self.channel() as channel:
            queue = await channel.get_queue(name, ensure=False)
            while (message := await queue.get(fail=False, no_ack=True)) is not None:
                found.append(message)
        return found

    @property
    def _cookie(self) -> str:
        return (self.folder / ".erlang.cookie").read_text()

    def _environment(self) -> dict[str, str]:
        values = {
            "HOME": self.folder,
            "RUNNING_UNDER_SYSTEMD": "true",  # or a shell stays in front of the server
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": _NODE,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_MNESIA_BASE": self.folder / "mnesia",
            "RABBITMQ_LOG_BASE": self.folder / "log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": self.folder / "pid",
            "RABBITMQ_CONFIG_FILE": self.folder / "rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG,
            **self._ports,
        }
        return {name: str(value) for name, value in values.items()}

    def manage(self, method: str, path: str, document: dict[str, Any] | None = None) -> None:
        """Ask the management plugin; a name in the path is quoted."""
        request = Request(
            f"http://127.0.0.1:{self._management}/api/{path}",
            method=method,
            data=json.dumps(document or {}).encode(),
            headers={"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "content-type": "application/json"},
        )
        urlopen(request, timeout=10).close()  # noqa: S310
