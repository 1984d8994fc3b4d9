"""What a proxy does wrong is named as its own, whatever it is; the proxy here follows a script."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import pytest

from relay.core.config_values import Secret
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.proxies import OutboundSettings, Proxies
from relay.outbound.http.client import HttpClient, HttpEndpoint
from relay.outbound.http.guard import GuardedConnector, serves_once

HOST = (("host", "crm.invalid"),)


class ScriptedProxy:
    """Answers each request with the same bytes; for None it says nothing."""

    def __init__(self) -> None:
        self.answer: bytes | None = b""
        self.heads: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            if self.answer is None:
                await reader.read()
            else:
                writer.write(self.answer)
        writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[ScriptedProxy]:
    proxy = ScriptedProxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    yield proxy
    server.close()
    await server.wait_closed()


def client_of(proxy: ScriptedProxy, timeout_s: float = 5.0) -> HttpClient:
    outbound = OutboundSettings(proxy_url=Secret(f"http://relay:marked@127.0.0.1:{proxy.port}"))
    proxies = Proxies.of(outbound, environ={})
    return HttpClient(timeout_s=timeout_s, connections=1, proxies=proxies)


async def failure(proxy: ScriptedProxy, url: str, *, timeout_s: float = 5.0) -> SinkError:
    client = client_of(proxy, timeout_s)
    with pytest.raises(SinkError) as caught:
        await client.exchange(HttpEndpoint.of(url), headers=HOST, body=b"{}")
    await client.close()
    error = caught.value
    assert "marked" not in f"{error!r} {error} {error.answer} {error.__context__!r}"
    return error


def answered(status: int, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"HTTP/1.1 {status} Said\r\n{lines}content-length: 0\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (302, Misconfigured, "it does not take our request: check proxy_url"),
        (400, Misconfigured, "it does not take our request: check proxy_url"),
        (403, Misconfigured, "its rules do not allow this destination"),
        (407, Misconfigured, "it requires credentials, or other ones than those in proxy_url"),
        (413, Misconfigured, "it does not take our request: check proxy_url"),
        (429, Temporary, "it asks for a slower pace"),
        (500, Temporary, "it has a fault, or cannot reach the destination"),
        (502, Temporary, "it cannot reach the destination"),
        (503, Temporary, "it cannot reach the destination"),
        (504, Temporary, "the destination does not answer it"),
    ],
)
async def test_an_answer_to_connect_is_the_proxys(
    proxy: ScriptedProxy, status: int, kind: type[SinkError], text: str
) -> None:
    proxy.answer = answered(status)
    error = await failure(proxy, "https://crm.invalid/hook")
    assert (type(error), error.unsent, error.about_event) == (kind, True, False)
    assert error.reason == f"the proxy answers {status}: {text}"
    assert proxy.heads[0].startswith(b"CONNECT crm.invalid:443 HTTP/1.1\r\n")
    assert b"\r\nProxy-Authorization: Basic cmVsYXk6bWFya2Vk\r\n" in proxy.heads[0]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "the connection ended without an answer to CONNECT"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "what answers there is no HTTP proxy"),
        (
            b"HTTP/1.1 200 Connection established\r\n\r\n",
            "the connection to the destination broke off during its set-up",
        ),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_is_named(
    proxy: ScriptedProxy, answer: bytes, text: str
) -> None:
    proxy.answer = answer
    error = await failure(proxy, "https://crm.invalid/hook")
    assert (type(error), error.unsent, error.about_event) == (Temporary, True, False)
    assert error.reason == f"the proxy: {text}"


async def test_a_proxy_that_says_nothing_to_connect_is_named_before_the_time_is_over(
    proxy: ScriptedProxy,
) -> None:
    proxy.answer = None
    async with asyncio.timeout(1.0):
        error = await failure(proxy, "https://crm.invalid/hook", timeout_s=1.0)
    assert (type(error), error.unsent) == (Temporary, True)
    assert error.reason == "the proxy: it has opened no way to the destination in time"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answered(407), "the proxy answers 407: it requires credentials"),
        (answered(400, "x-squid-error: ERR_INVALID_REQ 0"), "the proxy answers 400: it does not"),
        (answered(503, "x-squid-error: ERR_DNS_FAIL 0"), "the proxy answers 503: it cannot reach"),
        (answered(400, "server: tinyproxy/1.11.1"), "the proxy answers 400: it does not take"),
    ],
)
async def test_over_plain_http_a_proxys_mark_tells_its_answers_apart(
    proxy: ScriptedProxy, answer: bytes, reason: str
) -> None:
    proxy.answer = answer
    error = await failure(proxy, "http://crm.invalid/hook")
    assert error.unsent
    assert not error.about_event
    assert error.reason.startswith(reason)
    assert proxy.heads[0].startswith(b"POST http://crm.invalid/hook HTTP/1.1\r\n")
    assert b"\r\nProxy-Authorization: Basic cmVsYXk6bWFya2Vk\r\n" in proxy.heads[0]


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (
            answered(413, "x-squid-error: ERR_TOO_BIG 0"),
            Refused,
            "the proxy answers 413: the event is too large for it",
        ),
        (
            answered(502, "x-squid-error: ERR_ZERO_SIZE_OBJECT 0"),
            Temporary,
            "the proxy answers 502: the destination gave it no whole answer",
        ),
        (
            answered(504, "x-squid-error: ERR_READ_TIMEOUT 0"),
            Temporary,
            "the proxy answers 504: the destination gave it no whole answer",
        ),
        (b"", Temporary, "the proxy: the connection ended without an answer"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", Temporary, "the proxy: an SSH server answers there"),
    ],
)
async def test_over_plain_http_an_event_that_the_proxy_had_may_be_at_fault(
    proxy: ScriptedProxy, answer: bytes, kind: type[SinkError], reason: str
) -> None:
    proxy.answer = answer
    error = await failure(proxy, "http://crm.invalid/hook")
    assert (type(error), error.unsent, error.about_event) == (kind, False, True)
    assert error.reason.startswith(reason)


@pytest.mark.parametrize(("is_forwarded", "connections"), [(True, 3), (False, 1)])
async def test_a_pooled_connection_that_was_for_one_request_carries_no_other(
    *, is_forwarded: bool, connections: int
) -> None:
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        with suppress(asyncio.IncompleteReadError, OSError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answered(200))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    serves_once.set(is_forwarded)
    async with aiohttp.ClientSession(connector=GuardedConnector()) as session:
        for _ in range(3):  # each ends without an abort: aiohttp pools its connection
            async with session.get(url) as response:
                await response.read()
    server.close()
    await server.wait_closed()
    assert opened == connections


async def test_credentials_that_a_proxy_passes_on_show_in_no_excerpt(
    proxy: ScriptedProxy,
) -> None:
    said = b"Basic cmVsYXk6bWFya2Vk is relay with marked"
    proxy.answer = b"HTTP/1.1 422 No\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said)
    client = client_of(proxy)
    response = await client.exchange(HttpEndpoint.of("http://crm.invalid/"), headers=HOST)
    await client.close()
    assert response.excerpt == "Basic *** is relay with ***"
