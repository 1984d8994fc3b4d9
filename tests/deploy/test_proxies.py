"""Each shipped reverse proxy in front of the relay; both are the real programs."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from relay.config import ServerSettings
from tests.caller import PATH, Caller, head
from tests.deploy.proxies import (
    HOST,
    STRANGER,
    Caddy,
    Nginx,
    Proxy,
    Traefik,
    chunked,
    event,
    in_front,
    post,
)
from tests.ports import free_port
from tests.service import Relay
from tests.stub_server import Reply, StubServer, until

PROXIES: list[type[Proxy]] = [Nginx, Caddy, Traefik]

PATIENCE_S = 10.0
"""The sender's own."""

DRIP_S = 0.5

MAX_BODY = ServerSettings().max_body
NEARLY_MAX = 900 * 1024

ELSEWHERE = [
    *("/", "/metrics", "/healthz", "/readyz", "/-/reload", "/api/v1/events"),
    *("/api/v1/openapi.json", f"{PATH}/more", f"{PATH}ooks", f"{PATH}/../metrics"),
    *("//metrics", "/%6detrics", f"{PATH}/%2e%2e/metrics"),
]
"""Paths of the admin listener and others that belong to no source."""


@pytest.fixture(params=PROXIES, ids=lambda kind: kind.__name__.lower())
async def proxy(
    request: pytest.FixtureRequest, tmp_path: Path, relay: Relay
) -> AsyncIterator[Proxy]:
    async with in_front(request.param, tmp_path, relay_port=relay.service.public.port) as proxy:
        yield proxy


@pytest.mark.parametrize("way", ["at once", "in chunks"])
async def test_a_body_of_900_kib_arrives_byte_for_byte(
    proxy: Proxy, relay: Relay, destination: StubServer, way: str
) -> None:
    body = event(NEARLY_MAX)
    request = post(body) if way == "at once" else chunked(body, size=50_000)
    assert (await proxy.ask(request)).status == 202
    await until(lambda: bool(destination.requests), what="the delivery")
    assert len(destination.requests[0].body) == NEARLY_MAX
    assert destination.requests[0].body == body
    assert relay.stored() == 1


async def test_the_limit_of_a_body_is_the_relays_own(proxy: Proxy, relay: Relay) -> None:
    assert (await proxy.ask(post(event(MAX_BODY)))).status == 202
    assert (await proxy.ask(post(event(MAX_BODY + 1)))).status == 413
    assert (await proxy.ask(chunked(event(MAX_BODY + 1), size=50_000))).status == 413
    assert relay.stored() == 1


async def test_the_relay_logs_the_callers_address_not_a_forged_one(
    proxy: Proxy, relay: Relay
) -> None:
    forged = [("X-Forwarded-For", "203.0.113.7"), ("Forwarded", "for=203.0.113.7")]
    answer = await proxy.ask(post(b"{}", *forged, ("X-Real-IP", "203.0.113.7"), sign=False))
    assert answer.status == 401
    (line,) = relay.lines("request.refused")
    assert line["client"] == STRANGER
    assert "203.0.113.7" not in relay.log


@pytest.mark.parametrize("kind", PROXIES)
async def test_forged_forwarded_addresses_are_replaced(tmp_path: Path, kind: type[Proxy]) -> None:
    forged = [("X-Forwarded-For", "203.0.113.7"), ("X-Forwarded-For", "203.0.113.8")]
    async with (
        StubServer() as relay,
        in_front(kind, tmp_path, relay_port=relay.port) as proxy,
    ):
        relay.reply = lambda _: Reply(202, b"{}")
        await proxy.ask(post(b"{}", *forged))
    (request,) = relay.requests
    told = [value for name, value in request.headers if name == "x-forwarded-for"]
    assert told == [STRANGER]


async def test_a_strangers_request_id_is_not_in_the_relays_log(proxy: Proxy, relay: Relay) -> None:
    answer = await proxy.ask(post(b"{}", ("X-Request-ID", "chosen-by-a-stranger"), sign=False))
    assert answer.status == 401
    (line,) = relay.lines("request.refused")
    if isinstance(proxy, Traefik):  # it makes none
        assert "request_id" not in line
    else:
        assert re.fullmatch(r"[0-9a-f-]{32,36}", line["request_id"])
    assert "chosen-by-a-stranger" not in relay.log


async def test_paths_of_no_source_are_404_without_reaching_the_relay(
    proxy: Proxy, relay: Relay
) -> None:
    for path in ELSEWHERE:
        for method in ("GET", "POST"):
            request = head(method, path, ("Host", HOST), ("Content-Length", "0"))
            status = (await proxy.ask(request)).status
            assert status == 404, (method, path)
    assert await relay.counts("relay_requests_total") == {}


@pytest.mark.parametrize("target", [PATH, f"{PATH}/", f"{PATH}?a=b", f"{PATH}/?a=b"])
async def test_a_trailing_slash_or_query_reaches_the_hook(
    proxy: Proxy, relay: Relay, target: str
) -> None:
    assert (await proxy.ask(post(event(100), target=target))).status == 202
    assert await relay.counts("relay_requests_total") == {("202", "main"): 1}


async def test_no_form_of_the_path_is_redirected(proxy: Proxy, relay: Relay) -> None:
    forms = [f"/{PATH}", f"{PATH}//", f"/.{PATH}", f"/a/..{PATH}", "/%77ebhooks", PATH.upper()]
    for form in forms:
        # Caller takes no answer of the kind 3xx.
        answer = await proxy.ask(post(event(100), target=form))
        assert "location" not in answer.headers


async def test_the_relays_503_comes_through_with_its_retry_after(
    proxy: Proxy, relay: Relay
) -> None:
    relay.service._public_side.receiver.draining = True
    answer = await proxy.ask(post(event(100)))
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.content["status"] == "unavailable"


async def test_a_stopped_relay_is_answered_502(tmp_path: Path) -> None:
    port = free_port()
    async with AsyncExitStack() as running:
        proxies = [
            await running.enter_async_context(in_front(kind, tmp_path, relay_port=port))
            for kind in PROXIES
        ]
        async with asyncio.timeout(PATIENCE_S):
            statuses = await asyncio.gather(*(status(proxy, post(b"{}")) for proxy in proxies))
    assert statuses == [502, 502, 502]


async def status(proxy: Proxy, request: bytes) -> int:
    """The status of a response that Caller would refuse."""
    async with await proxy.call() as caller:
        caller.write(request)
        return int((await caller._reader.readline()).split()[1])


async def test_neither_a_body_nor_a_signature_is_in_the_proxys_logs(
    proxy: Proxy, relay: Relay
) -> None:
    marked = b'{"id":"evt_1","event":"video.ready","data":"marked@example.com"}'
    await proxy.ask(post(marked))
    await proxy.ask(post(marked, ("Authorization", "marked-header")).replace(b"ready", b"READY"))
    await proxy.ask(post(marked + b" " * MAX_BODY))
    await asyncio.to_thread(proxy.stop)
    files = [file for file in proxy.folder.iterdir() if file.suffix == ".log"]
    logged = b"".join(file.read_bytes() for file in files)
    assert PATH.encode() in logged
    for secret in (b"v1=", b"marked"):
        assert secret not in logged


async def test_slow_requests_are_cut_off_before_the_sender_gives_up(
    tmp_path: Path, relay: Relay
) -> None:
    body = b"{" + b" " * 100
    whole = post(body)
    begun, stalled = whole[: whole.index(b"Content-Length")], whole[: -len(body) + 1]
    port = relay.service.public.port
    async with AsyncExitStack() as running:
        nginx, caddy, traefik = [
            await running.enter_async_context(in_front(kind, tmp_path, relay_port=port))
            for kind in PROXIES
        ]
        # nginx has a limit for the next byte of a body, and none for the whole: see test_nginx.py.
        await asyncio.gather(
            *(dribble(proxy, begun, b"x") for proxy in (nginx, caddy, traefik)),
            *(dribble(proxy, stalled, b"") for proxy in (nginx, caddy, traefik)),
            *(dribble(proxy, stalled, b" ") for proxy in (caddy, traefik)),
        )
        assert relay.stored() == 0
        for proxy in (nginx, caddy, traefik):
            assert (await proxy.ask(post(event(100)))).status in (200, 202)


async def dribble(proxy: Proxy, begun: bytes, drip: bytes) -> None:
    """Send drips until the relay responds or closes the connection."""
    async with await proxy.call() as caller, asyncio.timeout(PATIENCE_S):
        caller.write(begun)
        ended = asyncio.create_task(end(caller))
        while not (await asyncio.wait([ended], timeout=DRIP_S))[0]:
            caller.write(drip)
        answer = await ended
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


async def end(caller: Caller) -> bytes:
    with suppress(ConnectionResetError):
        return await caller._reader.readline()
    return b""
