"""A served sandbox, a config with its API, and the commands that ask it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from click.testing import Result

from relay.core.clock import SystemClock
from tests.cli.scene import Scene
from tests.guarantees.process import Relay
from tests.operator import ADMIN
from tests.sandbox.service import Served, serving

HOOK = "https://hooks.example.com/webhooks"


class Developer:
    """Has a config in a folder, with an API that the sandbox serves."""

    def __init__(self, folder: Path, served: Served) -> None:
        self.folder = folder
        self.served = served
        self.config = folder / "config.toml"
        self.secret = folder / "secret"
        self.is_admin = True
        self.source = ""
        self.rest = ""
        self._scene = Scene(folder)

    def api(self, endpoint: str | None = None) -> str:
        """Return the table of the API, with this key."""
        headers = self.served.headers("Admin" if self.is_admin else "Read only")
        key = headers["Authorization"].removeprefix("Bearer ")
        of_endpoint = "" if endpoint is None else f'endpoint = "{endpoint}"\n'
        return f'[source.api]\nbase_url = "{self.served.url}"\nkey = "{key}"\n{of_endpoint}'

    def write(self, endpoint: str | None = None) -> None:
        """Write the config; the secret is in its file."""
        self.config.write_text(
            '[[source]]\nname = "main"\npath = "/webhooks"\n'
            f'secrets = ["file:{self.secret}"]\n{self.source}{self.api(endpoint)}{self.rest}',
            encoding="utf-8",
        )

    async def run(self, command: str) -> Result:
        return await self._scene.invoke(command)

    async def register(self, url: str = HOOK, *, more: str = "") -> str:
        """Register an endpoint, put its id into the config, and return it."""
        self.write()
        done = await self.run(f"endpoint register --url {url} --secret-file {self.secret}{more}")
        assert done.exit_code == 0, done.output
        (endpoint,) = self.served.sandbox.workspace.endpoints
        self.write(endpoint)
        return endpoint

    def secret_of(self, endpoint: str) -> str:
        """Return the signing secret that the service has."""
        return self.served.sandbox.workspace.endpoints[endpoint].secret


@contextlib.asynccontextmanager
async def developing(folder: Path, *, speed: float = 100.0) -> AsyncIterator[Developer]:
    async with serving(clock=SystemClock(), speed=speed) as served:
        yield Developer(folder, served)


@contextlib.asynccontextmanager
async def receiving(
    developer: Developer, *, sinks: str = "", secret: str | None = None
) -> AsyncIterator[tuple[Relay, str]]:
    """A running relay whose endpoint is registered; also yields the endpoint's id."""
    relay = Relay(developer.folder, sinks=sinks, secret=secret or f"file:{developer.secret}")
    text = relay.config.read_text(encoding="utf-8").replace("{", "{{").replace("}", "}}")
    endpoint = await developer.register(relay.url)
    relay.config.write_text(text.format() + developer.api(endpoint) + ADMIN, encoding="utf-8")
    async with relay:
        await relay.start()
        yield relay, endpoint
