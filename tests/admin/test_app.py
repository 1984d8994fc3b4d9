"""The admin listener: open metrics and health, everything else behind the token."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import pytest
import structlog

from relay.admin import AdminServices, admin_app, auth
from relay.admin.auth import KnownClients
from relay.admin.readiness import Readiness
from relay.config import AdminSettings, Config, ServerSettings
from relay.core.acceptance import AcceptanceHealth
from relay.core.clock import Clock, Instant
from relay.core.config_values import Address, Duration, Secret
from relay.core.errors import StoreBroken, StoreError, StoreFull
from relay.server.connection_limit import ADMIN_MAX, ConnectionLimit
from relay.server.listener import Listener
from relay.store import Store
from relay.telemetry.ack_times import AckTimes
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics
from relay.telemetry.traffic import Traffic
from tests.conftest import ManualClock
from tests.guarantees.process import http_client
from tests.store.places import opened

TOKEN = "token-of-the-test"


@dataclass
class Probed:
    """A store with only a `probe`, which succeeds, fails or hangs."""

    error: Exception | None = None
    hangs: bool = False
    probes: int = 0
    sessions: None = None
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def probe(self, *, size: int) -> None:
        del size
        self.probes += 1
        if self.hangs:
            await self.release.wait()
        if self.error is not None:
            raise self.error


class Fingerprints:
    """Sessions of which only fingerprints are asked for."""

    def fingerprint(self, token: str) -> bytes:
        return token.encode()


@asynccontextmanager
async def serving(
    store: object, clock: Clock, *, token: str | None = TOKEN, draining: bool = False
) -> AsyncIterator[httpx.AsyncClient]:
    settings = AdminSettings(token=None if token is None else Secret(token))
    config = cast("Config", SimpleNamespace(admin=settings, server=ServerSettings(), routes=()))
    metrics = Metrics(["main"], ["sales"])
    app = admin_app(
        AdminServices(
            store=store,  # type: ignore[arg-type]
            auditor=None,  # type: ignore[arg-type]
            known_clients=KnownClients(Fingerprints(), clock),  # type: ignore[arg-type]
            readiness=Readiness(store, clock, AcceptanceHealth(clock), lambda: draining),  # type: ignore[arg-type]
            sinks=None,  # type: ignore[arg-type]
            watched=None,  # type: ignore[arg-type]
            erase=None,  # type: ignore[arg-type]
            replays=None,  # type: ignore[arg-type]
            reconciliations=None,  # type: ignore[arg-type]
            activity=ActivityStream(clock),
            clock=clock,
            metrics=metrics,
            ack_times=AckTimes(metrics, clock),
            started=Instant(clock),
            downtime=lambda: None,
            traffic=Traffic(),
            reloads=None,  # type: ignore[arg-type]
            rotations=None,  # type: ignore[arg-type]
            intake=None,  # type: ignore[arg-type]
            config=lambda: config,
        )
    )
    limit = ConnectionLimit(ADMIN_MAX, is_trusted=lambda _: True)
    address = Address("127.0.0.1:0")
    listener = Listener(app, address, grace=Duration.parse("1s"), limit=limit)
    await listener.start()
    try:
        async with http_client(base_url=listener.url) as client:
            yield client
    finally:
        await listener.stop()


async def test_the_metrics_need_no_token(clock: Clock) -> None:
    async with serving(Probed(), clock) as client:
        answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'relay_leads_captured_total{source="main"} 0.0' in answer.text


async def test_openmetrics_are_served_on_request(clock: Clock) -> None:
    async with serving(Probed(), clock) as client:
        wanted = {"accept": "application/openmetrics-text; version=1.0.0"}
        answer = await client.get("/metrics", headers=wanted)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=1.x", "nonsense", ";,=;"]
)
async def test_an_odd_accept_header_gets_the_plain_text(clock: Clock, accept: str) -> None:
    async with serving(Probed(), clock) as client:
        answer = await client.get("/metrics", headers={"accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")


async def test_the_metrics_do_not_read_the_store(clock: Clock) -> None:
    store = Probed(error=StoreBroken("gone"))
    async with serving(store, clock) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert store.probes == 0


async def test_a_relay_that_can_commit_is_ready(clock: Clock, tmp_path: Path) -> None:
    async with opened(tmp_path / "relay.db", clock) as store, serving(store, clock) as client:
        answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    assert answer.headers["cache-control"] == "no-store"


async def test_a_relay_without_free_space_is_not_ready(clock: Clock, tmp_path: Path) -> None:
    async with (
        opened(tmp_path / "relay.db", clock, min_free="999999GiB") as store,
        serving(store, clock) as client,
    ):
        answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["problems"] == ["the store is short of free space"]


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (StoreFull("sec.ret"), "the store is short of free space"),
        (StoreBroken("sec.ret"), "the disk of the store failed; restart the relay"),
        (StoreError("sec.ret"), "the store accepts no events"),
    ],
)
async def test_readiness_names_the_fault_of_the_store(
    clock: Clock, error: StoreError, problem: str
) -> None:
    async with serving(Probed(error), clock) as client:
        answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"status": "not ready", "problems": [problem]}


async def test_a_draining_relay_is_not_ready_and_does_not_probe_the_store(clock: Clock) -> None:
    store = Probed()
    async with serving(store, clock, draining=True) as client:
        answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["problems"] == ["the relay is stopping"]
    assert store.probes == 0


async def test_concurrent_requests_share_the_probe_of_a_hanging_store(clock: Clock) -> None:
    store = Probed(hangs=True)
    health = AcceptanceHealth(clock)
    readiness = Readiness(_as_store(store), clock, health, lambda: False, timeout_s=0.02)
    answers = await asyncio.gather(*(readiness.problems() for _ in range(5)))
    assert answers == [["the store has not committed within 0.02 s"]] * 5
    assert store.probes == 1
    store.release.set()
    assert await readiness.problems() == []
    assert store.probes == 1


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
async def test_head_is_answered_like_get_without_a_body(clock: Clock, path: str) -> None:
    async with serving(Probed(), clock) as client:
        answer = await client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")


async def test_a_405_lists_the_allowed_methods(clock: Clock) -> None:
    async with serving(Probed(), clock) as client:
        answer = await client.post("/metrics")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {"title": "Method Not Allowed", "status": 405}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": TOKEN},
        {"authorization": "Bearer"},
        {"authorization": b"Bearer \xe9\xff"},
    ],
)
async def test_everything_else_needs_the_token(
    clock: Clock, headers: dict[str, str | bytes]
) -> None:
    async with serving(Probed(), clock) as client:
        answer = await client.get("/api/v1/events", headers=list(headers.items()))  # type: ignore[arg-type]
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["title"] == "Unauthorized"


async def test_guesses_over_many_connections_are_limited_and_what_is_open_is_not(
    clock: ManualClock,
) -> None:
    async with serving(Probed(), clock) as client:

        async def guess(token: str) -> httpx.Response:
            return await client.get("/api/v1/status", headers={"authorization": f"Bearer {token}"})

        answers = await asyncio.gather(*(guess(f"guess-{number}") for number in range(60)))
        looked_at = auth.ADDRESS.tries
        assert Counter(answer.status_code for answer in answers) == {401: looked_at, 429: 55}
        refused = await guess(TOKEN)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "30")
        assert "Try again in 30 s." in refused.json()["detail"]
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200


async def test_wrong_tokens_of_the_api_count_at_the_login(clock: ManualClock) -> None:
    async with serving(Probed(), clock) as client:
        for number in range(auth.ADDRESS.tries):
            wrong = {"authorization": f"Bearer guess-{number}"}
            await client.get("/api/v1/status", headers=wrong)
        origin = {"origin": str(client.base_url).rstrip("/")}
        answer = await client.post("/login", data={"token": TOKEN}, headers=origin)
    assert answer.status_code == 429
    assert "Try again in 30 s." in answer.text


async def test_a_refused_token_is_in_the_log_with_its_address(clock: ManualClock) -> None:
    with structlog.testing.capture_logs() as lines:
        async with serving(Probed(), clock) as client:
            for number in range(auth.ADDRESS.tries + 1):
                wrong = {"authorization": f"Bearer guess-{number}"}
                await client.get("/api/v1/status", headers=wrong)
    refused = [line for line in lines if line["event"] == "token.refused"]
    assert {(line["reason"], line["client"]) for line in refused} >= {("wrong", "127.0.0.1")}
    assert "guess" not in repr(lines)


async def test_two_authorization_headers_are_refused(clock: Clock) -> None:
    twice = [("authorization", f"Bearer {TOKEN}")] * 2
    async with serving(Probed(), clock) as client:
        assert (await client.get("/api", headers=twice)).status_code == 401


@pytest.mark.parametrize("path", ["/api", "/api/v1/nothing", "/-/nothing"])
async def test_with_the_token_an_unknown_path_is_not_found(clock: Clock, path: str) -> None:
    async with serving(Probed(), clock) as client:
        answer = await client.get(path, headers={"authorization": f"bearer {TOKEN}"})
    assert answer.status_code == 404
    assert answer.json() == {"title": "Not Found", "status": 404}


@pytest.mark.parametrize("token", [None, ""])
async def test_without_a_configured_token_the_admin_api_is_off(
    clock: Clock, token: str | None
) -> None:
    async with serving(Probed(), clock, token=token) as client:
        answer = await client.get("/api/v1/events", headers={"authorization": "Bearer"})
        assert (await client.get("/readyz")).status_code == 200
    assert answer.status_code == 404
    assert answer.json()["detail"] == "The admin API is off because [admin] token is not set."


async def test_a_bug_is_reported_without_its_text(clock: Clock) -> None:
    async with serving(Probed(KeyError("sec.ret")), clock) as client:
        answer = await client.get("/readyz")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "sec.ret" not in answer.text


def _as_store(store: Probed) -> Store:
    return store  # type: ignore[return-value]
