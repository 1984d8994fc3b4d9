"""A sandbox with its population and a relay, on one clock that only the test steps."""

import asyncio
import contextlib
import io
import socket
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from relay import config
from relay.app import maintenance
from relay.app.service import ProcessHooks, Service
from relay.core.event import LEAD_CAPTURED
from relay.reconciliation import reconciler
from relay.sandbox.model import Access, Endpoint, Workspace
from relay.sandbox.sandbox import Sandbox
from relay.sandbox.truth import truth
from relay.sandbox.viewing import Visit
from relay.store.postgres import backlogs, leases
from relay.store.postgres import engine as postgres_engine
from tests.conftest import NOW_MS
from tests.guarantees.process import http_client
from tests.sandbox.stepped_clock import SteppedClock
from tests.service import logging_to_memory
from tests.store.places import Place, PostgresPlace, SqlitePlace
from tests.stub_server import StubServer, until

ADA = "ada@example.com"
TOKEN = "a-token-of-the-simulation"
SECOND_MS = 1000
HOUR_MS = 3600 * SECOND_MS
GIVEN_UP_MS = 700 * SECOND_MS
"""Time after a start until the sender has given up all that it tried first before."""

DOCUMENT = """
[server]
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:0"

[admin]
token = "env:RELAY_ADMIN_TOKEN"

[store]
{store}

[[source]]
name = "main"
path = "/webhooks"
secrets = ["env:RELAY_SECRET"]
reconcile = "{reconcile}"

[source.api]
base_url = "{url}"
key = "env:API_KEY"
{api}

[[sink]]
name = "crm"
type = "http"
url = "{sink}/crm"
reconstructed = true

[[sink]]
name = "plain"
type = "http"
url = "{sink}/plain"
"""

Fact = tuple[str, ...]
"""A milestone with person and video, a lead with its id, or a change of a video."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass
class World:
    """The sandbox, the relay when it runs, and the destination of its sinks."""

    folder: Path
    sandbox: Sandbox
    clock: SteppedClock
    url: str
    destination: StubServer
    place: Place
    """Of the relay's store."""
    reconcile: str = "ask"
    access: Access = "Read only"
    """Of the relay's key."""
    api: str = ""
    """Further keys of `[source.api]`."""
    port: int = field(default_factory=_free_port)
    secret: str = ""
    endpoint: Endpoint = field(init=False)
    services: list[Service] = field(default_factory=list)
    """The relays that are running."""
    errors: io.BytesIO = field(default_factory=io.BytesIO)
    """The log of the last relay."""

    async def step(self, ms: int) -> None:
        """Let the time pass for the sandbox and the relay."""
        await self.sandbox.run_until(self.clock.now_ms() + ms)

    def is_quiet(self) -> bool:
        """Whether nothing is being sent: a step of the clock would be more than its timeout."""
        sinks = [sink for each in self.services for sink in each.supervisor.statuses().values()]
        return not any(sink.in_flight and not sink.is_elsewhere for sink in sinks)

    async def step_hours(self, hours: float) -> None:
        await self.step(round(hours * HOUR_MS))

    def key(self) -> str:
        """The relay's key."""
        keys = self.sandbox.workspace.keys.values()
        return next(key.value for key in keys if key.access == self.access)

    def submit(self, *, video: int = 0, **fields: str) -> str:
        """Let Ada open a video, submit a form and leave; returns the lead's id."""
        viewing, videos = self.sandbox.services.viewing, list(self.sandbox.workspace.videos)
        view = viewing.begin(videos[video], Visit())
        lead = viewing.submit(view.id, email=ADA, name="Ada", fields=dict(fields))
        viewing.end(view.id)
        return lead.id

    def leads(self, sink: str = "crm") -> Counter[str]:
        """The leads that a sink was sent, and by how many events."""
        bodies = {body["id"]: body for body in self.received(sink)}.values()
        return Counter(body["data"]["id"] for body in bodies if body["event"] == LEAD_CAPTURED)

    async def listed_videos(self) -> list[dict[str, Any]]:
        headers = {"authorization": f"Bearer {self.key()}"}
        async with http_client(base_url=self.url, headers=headers) as api:
            videos: list[dict[str, Any]] = (await api.get("/v1/videos")).json()["videos"]
        return videos

    def register(self) -> None:
        url = f"http://127.0.0.1:{self.port}/webhooks"
        self.endpoint = self.sandbox.webhooks.create(url, [])
        self.secret = self.endpoint.secret
        self.sandbox.webhooks.create(self.destination.url("/control"), [])

    @contextlib.asynccontextmanager
    async def relay(self, *, port: int | None = None) -> AsyncIterator["RunningRelay"]:
        """Run a relay for the block; its last heartbeat is from the block's end.

        Events go to the one without a `port` of its own.
        """
        file = self.folder / "config.toml"
        file.write_text(
            DOCUMENT.format(
                port=self.port if port is None else port,
                store=self._store(),
                url=self.url,
                sink=self.destination.url("").rstrip("/"),
                reconcile=self.reconcile,
                api=self.api,
            ),
            encoding="utf-8",
        )
        environ = {
            "RELAY_ADMIN_TOKEN": TOKEN,
            "RELAY_SECRET": self.secret,
            "API_KEY": self.key(),
        }
        with logging_to_memory() as self.errors:
            async with self._running(config.load(file, environ), environ) as relay:
                yield relay

    @contextlib.asynccontextmanager
    async def _running(
        self, settings: config.Config, environ: dict[str, str]
    ) -> AsyncIterator["RunningRelay"]:
        service = await Service.open(settings, clock=self.clock, host=ProcessHooks(environ=environ))
        stop, ready = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(service.run(stop, ready=ready.set))
        self.services.append(service)
        try:
            await until(lambda: ready.is_set() or running.done(), what="the relay's readiness")
            headers = {"authorization": f"Bearer {TOKEN}"}
            async with http_client(base_url=service.admin.url, headers=headers) as admin:
                yield RunningRelay(self, service, admin)
                await until(self._has_beaten, what="a heartbeat")
        finally:
            stop.set()
            await running
            self.services.remove(service)

    def _store(self) -> str:
        if isinstance(self.place, PostgresPlace):
            dsn = self.place.server.dsn
            return f'type = "postgres"\ndsn = "{dsn}"\nschema = "{self.place.schema}"'
        return f'path = "{self.folder}/relay.db"\nmin_free = "1MiB"'

    def _has_beaten(self) -> bool:
        rows = self.place.rows("SELECT value FROM relay.state WHERE name = 'heartbeat'")
        return rows == [(self.clock.now_ms(),)]

    def received(self, sink: str = "crm") -> list[dict[str, Any]]:
        """The bodies that a sink was sent."""
        return [
            orjson.loads(request.body)
            for request in self.destination.requests
            if request.target == f"/{sink}" and request.method == "POST"
        ]

    def facts(self, sink: str = "crm") -> Counter[Fact]:
        """What a sink was told, and by how many events."""
        bodies = {body["id"]: body for body in self.received(sink)}
        return Counter(fact_of(body) for body in bodies.values())

    def truth(self) -> set[Fact]:
        """What identified viewers did, by the sandbox's own account."""
        told = truth(self.sandbox.workspace)
        milestones = {(row.email, row.video.id, row.milestone) for row in told.milestones}
        return milestones | {("lead", row.lead.id) for row in told.leads}


@dataclass
class RunningRelay:
    world: World
    service: Service
    admin: httpx.AsyncClient

    async def reconcile(self, **order: object) -> dict[str, Any]:
        """Run a reconciliation to its end; returns its view."""
        answer = await self.admin.post("/api/v1/reconciliations", json=order)
        assert answer.status_code == 200, answer.text
        (run,) = answer.json()["reconciliations"]
        async with asyncio.timeout(60):
            while run["state"] == "running":
                await asyncio.sleep(0.02)
                run = (await self.admin.get(f"/api/v1/reconciliations/{run['id']}")).json()
        view: dict[str, Any] = run
        return view

    async def get(self, path: str) -> dict[str, Any]:
        answer = await self.admin.get(path)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def commands(self) -> list[str]:
        """The commands that the verdict names."""
        return [problem["next"] for problem in (await self.get("/api/v1/status"))["problems"]]

    async def metric(self, name: str) -> list[str]:
        """The series of a metric that are not 0."""
        lines = (await self.admin.get("/metrics")).text.splitlines()
        return [line for line in lines if line.startswith(name) and not line.endswith(" 0.0")]

    async def settled(self) -> None:
        """Wait until nothing is pending."""
        pending: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(30):
                while pending := await self._pending():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            log = self.world.errors.getvalue().decode()
            raise AssertionError(f"not settled: {pending}\n{log[-4000:]}") from None

    async def _pending(self) -> list[dict[str, Any]]:
        sinks: list[dict[str, Any]] = (await self.get("/api/v1/sinks"))["sinks"]
        return [sink for sink in sinks if sink["pending"]]


@contextlib.asynccontextmanager
async def world(
    folder: Path,
    *,
    viewers: int,
    videos: int = 12,
    reconcile: str = "ask",
    seed: int = 7,
    place: Place | None = None,
) -> AsyncIterator[World]:
    clock = SteppedClock(NOW_MS)
    sandbox = Sandbox(Workspace(seed=seed), clock=clock, timeout_s=30)
    async with StubServer() as destination, sandbox.listen() as url:
        with pytest.MonkeyPatch.context() as patch:
            # The clock goes on by hours between two heartbeats, which are in real time.
            patch.setattr(maintenance, "STALL_MS", 1 << 60)
            patch.setattr(maintenance, "HEARTBEAT_EVERY_S", 0.02)
            patch.setattr(reconciler, "POLL_INTERVAL_S", 0.05)
            # A step of the clock during a look is no cost of that look.
            patch.setattr(leases, "COST_FACTOR", 0)
            # The database goes by the test's clock, too.
            patch.setattr(SteppedClock, "adopt", lambda *_: 0, raising=False)
            patch.setattr(postgres_engine, "SynchronizedClock", lambda clock: clock)
            patch.setattr(backlogs, "COST_FACTOR", 0)
            where = place or SqlitePlace(folder)
            made = World(folder, sandbox, clock, url, destination, where, reconcile=reconcile)
            answered = sandbox.schedule.settle

            async def settle() -> None:
                await answered()
                await until(made.is_quiet, what="the end of all sends")

            patch.setattr(sandbox.schedule, "settle", settle)
            made.register()
            sandbox.populate(viewers=viewers, videos=videos)
            try:
                yield made
            finally:
                await sandbox.close()


def fact_of(body: dict[str, Any]) -> Fact:
    """Return what an event says."""
    data = body["data"]
    if body["event"] == "video.watched":
        return data["viewer"]["email"], data["video"]["id"], data["milestone"]
    if body["event"] == "lead.captured":
        return "lead", data["id"]
    return body["event"], data["id"], str(data.get("version", data.get("trashed", "")))
