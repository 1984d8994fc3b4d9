"""A whole sandbox: its parts wired, served, and kept in a file."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from relay.core.clock import Clock, SystemClock
from relay.core.config_values import Address
from relay.core.delivery_rules import TIMEOUT_S
from relay.core.errors import ListenFailed
from relay.sandbox import app, connections
from relay.sandbox.faults import Faults
from relay.sandbox.keys import Keys
from relay.sandbox.library import Library
from relay.sandbox.model import Workspace
from relay.sandbox.population import Population
from relay.sandbox.schedule import Schedule, Steppable
from relay.sandbox.services import Services
from relay.sandbox.state import StateFile
from relay.sandbox.uploads import Uploads
from relay.sandbox.viewing import Viewing
from relay.sandbox.webhooks import Webhooks

LOOPBACK = Address("127.0.0.1:0")


class Sandbox:
    """A stand-in of the video service; with a clock that is stepped, only `run_until` moves it."""

    def __init__(
        self,
        workspace: Workspace | None = None,
        *,
        clock: Clock | None = None,
        speed: float = 1.0,
        state: Path | None = None,
        timeout_s: float = TIMEOUT_S,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        """`state` is the file that the workspace is written to; `timeout_s` that of webhooks.

        `allowed_hosts` are names under which it is reached beside those of loopback.
        """
        self.workspace = Workspace() if workspace is None else workspace
        self.schedule = Schedule(
            clock or SystemClock(), speed=speed, start_ms=self.workspace.schedule_ms
        )
        self.webhooks = Webhooks(self.workspace, self.schedule, timeout_s=timeout_s)
        self.library = Library(self.workspace, self.schedule, self.webhooks)
        self.viewing = Viewing(self.workspace, self.schedule, self.webhooks)
        self.keys = Keys(self.workspace, self.schedule.clock)
        self._file = None if state is None else StateFile(state, self.workspace, self.schedule)
        self.services = Services(
            workspace=self.workspace,
            schedule=self.schedule,
            keys=self.keys,
            webhooks=self.webhooks,
            library=self.library,
            uploads=Uploads(self.workspace, self.schedule, self.library),
            viewing=self.viewing,
            faults=Faults(self.schedule.clock),
            save=self.save,
        )
        self.app = app.build(self.services, allowed_hosts=allowed_hosts)
        self.keys.create_missing()
        self.webhooks.resume()
        self.library.resume()

    def populate(self, *, viewers: int, videos: int) -> None:
        """Add videos to a library that never had any, and let viewers come, if there are any."""
        population = Population(
            self.workspace, self.schedule, viewing=self.viewing, library=self.library
        )
        population.start(viewers=viewers, videos=videos)

    async def run_until(self, ms: int) -> None:
        """Step the clock to `ms` since the epoch, and run the actions on the way.

        Returns once every request that it began has been answered.
        """
        await self.schedule.run_until(ms)

    async def run(self) -> None:
        """Run in real time until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.schedule.run())
            if self._file is not None:
                group.create_task(self._file.run())

    @contextlib.asynccontextmanager
    async def listen(self, address: Address = LOOPBACK) -> AsyncIterator[str]:
        """Serve an address as `serve` does. Raises ListenFailed."""
        with _bind(address) as bound:
            async with self.serve(bound):
                yield address.url(bound.getsockname()[1])

    @contextlib.asynccontextmanager
    async def serve(self, bound: socket.socket) -> AsyncIterator[str]:
        """Serve a socket until the block ends, and run in real time unless the clock is stepped.

        Yields the base URL.
        """
        url = Address.of(bound.getsockname()).url()
        try:
            async with connections.serving(self.app, bound), asyncio.TaskGroup() as group:
                is_stepped = isinstance(self.schedule.clock, Steppable)
                running = None if is_stepped else group.create_task(self.run())
                yield url
                if running is not None:
                    running.cancel()
        except BaseExceptionGroup as errors:
            if len(errors.exceptions) == 1:
                raise errors.exceptions[0] from None
            raise

    @property
    def is_kept(self) -> bool:
        """Whether the workspace is written to a file."""
        return self._file is not None

    def save(self) -> None:
        """Write the workspace to its file, if it has one."""
        if self._file is not None:
            self.viewing.catch_up()
            self._file.write()

    async def close(self) -> None:
        """Stop all that is under way, and save; a sandbox on the same file resumes from it."""
        await self.schedule.close()
        await self.webhooks.close()
        self.save()


def _bind(address: Address) -> socket.socket:
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, _, _, _, where = infos[0]
        bound = socket.create_server(where, family=family)
    except (socket.gaierror, UnicodeError):
        raise ListenFailed(address, "no such host") from None
    except OSError as error:
        raise ListenFailed(address, os.strerror(error.errno or 0)) from None
    # For its connections: only uvloop sets it on each, and answers are written in pieces.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound
