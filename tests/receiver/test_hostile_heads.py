"""What a head may ask for beside its request: upgrades, trailers, other versions (RFC 9110).

All at the socket, whatever parses the bytes.
"""

import asyncio
from collections.abc import Callable

import pytest

from relay.server.http_protocol import HEADERS_MAX
from tests.caller import PATH, Caller, head, post, signed
from tests.loop_watch import UvLoop
from tests.receiver.hostile import EVENT
from tests.receiver.rows import row
from tests.service import Relay

OTHER = EVENT.replace(b"evt_1", b"evt_2")
SENDER = "203.0.113.9"
UPGRADES = ["h2c", "websocket", "HTTP/2.0", "TLS/1.0, h2c"]


@pytest.fixture(autouse=True)
def _row() -> None:
    """Takes the numbers that `row` puts into a test's id."""


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio", {"loop_factory": UvLoop}


def upgrading(body: bytes, to: str = "h2c", *more: tuple[str, str]) -> bytes:
    return post(body, ("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", to), *more)


def chunked(body: bytes, *more: tuple[str, str], trailers: bytes = b"") -> bytes:
    lines = [("Host", "relay"), ("Transfer-Encoding", "chunked"), *more]
    chunk = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailers)
    return head("POST", PATH, *lines) + chunk


def in_version(version: bytes) -> Callable[[bytes], bytes]:
    return lambda request: request.replace(b"HTTP/1.1", version, 1)


@row(49)
@pytest.mark.parametrize("to", UPGRADES)
async def test_an_offer_to_upgrade_is_ignored_and_its_event_is_taken(relay: Relay, to: str) -> None:
    async with await relay.call() as caller:
        assert (await caller.ask(upgrading(EVENT, to))).status == 202
        assert (await caller.ask(post(OTHER))).status == 202
    assert relay.stored() == 2


@row(49)
async def test_offers_to_upgrade_are_ignored_however_they_are_cut(relay: Relay) -> None:
    signature = ("Service-Signature", signed(EVENT))
    lines = [("Connection", "upgrade"), ("Upgrade", "h2c"), signature]
    requests = upgrading(EVENT) + chunked(EVENT, *lines) + upgrading(OTHER) + post(EVENT)
    async with await relay.call() as caller:
        for at in range(0, len(requests), 7):
            caller.write(requests[at : at + 7])
            await caller.flush()
        assert [(await caller.answer()).status for _ in range(4)] == [202, 200, 202, 200]
    async with await relay.call() as caller:
        caller.write(requests)
        assert [(await caller.answer()).status for _ in range(4)] == [200] * 4
    assert relay.stored() == 2


@row(49)
@pytest.mark.parametrize("to", UPGRADES)
async def test_a_body_behind_an_upgrade_is_never_taken_for_the_next_request(
    relay: Relay, to: str, caller: Caller
) -> None:
    answer = await caller.ask(upgrading(post(EVENT), to))
    assert (answer.status, answer.content) == (200, {"status": "unreadable"})
    assert (await caller.ask(post(OTHER))).status == 202
    assert relay.stored() == 1


@row(49)
async def test_an_upgrade_with_a_body_of_unclear_length_is_refused(relay: Relay) -> None:
    lines = [("Connection", "upgrade"), ("Upgrade", "h2c"), ("Transfer-Encoding", "identity")]
    async with await relay.call() as caller:
        request = head("POST", PATH, ("Host", "relay"), *lines, ("Service-Signature", signed(b"")))
        assert (await caller.ask(request + post(EVENT))).status == 400
        assert await caller.is_closed()
    assert relay.stored() == 0


@row(49)
async def test_many_offers_to_upgrade_at_once_are_all_answered(caller: Caller) -> None:
    count = 500
    offer = head("GET", PATH, ("Connection", "upgrade"), ("Upgrade", "h2c"))
    caller.write(offer * count)
    assert {(await caller.answer()).status for _ in range(count)} == {405}


@row(49)
async def test_a_tunnel_is_refused(relay: Relay, caller: Caller) -> None:
    request = head("CONNECT", "relay:80", ("Host", "relay"))
    assert (await caller.ask(request + post(EVENT))).status == 400
    assert await caller.is_closed()
    assert relay.stored() == 0


@row(1)
async def test_a_signature_in_a_trailer_does_not_count(relay: Relay, caller: Caller) -> None:
    trailer = b"Service-Signature: %b\r\n" % signed(EVENT).encode()
    assert (await caller.ask(chunked(EVENT, trailers=trailer))).status == 401
    assert (await caller.ask(post(OTHER))).status == 202
    assert relay.stored() == 1
    assert await relay.counts("relay_rejected_total") == {("missing", "main"): 1}


@row(4)
async def test_a_trailer_neither_spoils_a_request_nor_is_kept_with_it(
    relay: Relay, caller: Caller
) -> None:
    trailers = b"Service-Signature: t=1,v1=00\r\nX-Trailer: 1\r\nConnection: upgrade\r\n"
    trailers += b"Upgrade: h2c\r\nExpect: 100-continue\r\n"
    request = chunked(EVENT, ("Service-Signature", signed(EVENT)), trailers=trailers)
    assert (await caller.ask(request)).status == 202
    assert (await caller.ask(post(OTHER))).status == 202
    assert relay.heads().count(b"x-trailer") == 0
    assert relay.heads().count(b"service-signature") == 2


async def test_a_trailer_that_ends_the_connection_closes_it_behind_the_answer(
    caller: Caller,
) -> None:
    signature = ("Service-Signature", signed(EVENT))
    answer = await caller.ask(chunked(EVENT, signature, trailers=b"Connection: close\r\n"))
    assert (answer.status, answer.headers["connection"]) == (202, "close")
    assert await caller.is_closed()


@row(50)
async def test_an_address_in_a_trailer_is_not_the_clients(relay: Relay) -> None:
    forwarded = ("X-Forwarded-For", SENDER)
    trailer = b"X-Forwarded-For: 198.51.100.7\r\nX-Request-Id: forged\r\n"
    assert (await relay.ask(chunked(EVENT, trailers=trailer))).status == 401
    assert (await relay.ask(chunked(EVENT, forwarded, trailers=trailer))).status == 401
    lines = relay.lines("request.refused")
    assert [line["client"] for line in lines] == ["127.0.0.1", SENDER]
    assert [line.get("request_id") for line in lines] == [None, None]


@row(49)
@pytest.mark.parametrize("version", [b"HTTP/0.9", b"HTTP/2.0", b"HTTP/3.7", b"HTTP/9.9"])
async def test_another_major_version_is_not_supported(relay: Relay, version: bytes) -> None:
    async with await relay.call() as caller:
        caller.write(in_version(version)(post(EVENT)) + post(OTHER))
        answer = await caller.answer()
        assert (answer.status, answer.headers["connection"]) == (505, "close")
        assert await caller.is_closed()
    assert relay.stored() == 0
    assert await relay.counts("relay_requests_total") == {("505", "unknown"): 1}
    assert await relay.counts("relay_rejected_total") == {}


@row(49)
async def test_the_preface_of_http_2_is_not_supported(relay: Relay, caller: Caller) -> None:
    answer = await caller.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9)
    assert (answer.status, answer.headers["connection"]) == (505, "close")
    assert await caller.is_closed()
    assert await relay.counts("relay_requests_total") == {("505", "unknown"): 1}


@row(49)
async def test_a_request_before_one_of_another_version_is_answered(relay: Relay) -> None:
    async with await relay.call() as caller:
        caller.write(post(EVENT) + in_version(b"HTTP/2.0")(post(OTHER)))
        answer = await caller.answer()
        assert (answer.status, answer.headers["connection"]) == (202, "close")
        assert await caller.is_closed()
    assert relay.stored() == 1


@row(49)
@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1", b"HTTP/1.2", b"HTTP/1.9"])
async def test_every_minor_version_of_http_1_is_taken(version: bytes, caller: Caller) -> None:
    answer = await caller.ask(in_version(version)(post(EVENT)))
    assert answer.status == 202
    assert answer.headers.get("connection") == ("close" if version == b"HTTP/1.0" else None)


@row(49)
async def test_a_request_without_a_version_is_not_supported(caller: Caller) -> None:
    assert (await caller.ask(b"GET /webhooks\r\n\r\n")).status in (400, 505)
    assert await caller.is_closed()


def with_headers(count: int) -> bytes:
    """A signed event whose head has this many headers, all but a few of them empty."""
    return post(EVENT, *[("a", "")] * (count - 3))


@row(3, 49)
async def test_a_hundred_headers_are_taken_and_one_more_is_refused(relay: Relay) -> None:
    async with await relay.call() as caller:
        assert (await caller.ask(with_headers(HEADERS_MAX))).status == 202
        answer = await caller.ask(with_headers(HEADERS_MAX + 1))
        assert (answer.status, answer.headers["connection"]) == (431, "close")
        assert await caller.is_closed()
    assert await relay.counts("relay_rejected_total") == {("headers", "unknown"): 1}
    assert (await relay.counts("relay_requests_total"))["431", "unknown"] == 1
    (line,) = relay.lines("request.refused")
    assert (line["reason"], line["code"], line["client"]) == ("headers", 431, "127.0.0.1")


@row(3, 49, 50)
async def test_of_too_many_headers_the_forwarded_address_is_still_the_clients(relay: Relay) -> None:
    request = post(EVENT, ("X-Forwarded-For", SENDER), *[("a", "")] * HEADERS_MAX)
    assert (await relay.ask(request)).status == 431
    (line,) = relay.lines("request.refused")
    assert line["client"] == SENDER


@row(3, 49)
@pytest.mark.parametrize("end", [b"\r\n", b""], ids=["whole", "unfinished"])
async def test_thousands_of_tiny_headers_are_refused_before_they_are_kept(
    relay: Relay, end: bytes, caller: Caller
) -> None:
    request = b"POST /webhooks HTTP/1.1\r\n" + b"a:\r\n" * 15_000 + end
    caller.write(request * 4)
    await caller.flush()
    answer = await caller.answer()
    assert (answer.status, answer.headers["connection"]) == (431, "close")
    (connection,) = relay.service.public._connections
    assert connection._headers == []
    assert await caller.is_closed()
    assert (await relay.ask(post(EVENT))).status == 202


@row(3, 49)
async def test_an_offer_to_upgrade_allows_no_more_headers(caller: Caller) -> None:
    request = upgrading(EVENT, "h2c", *[("a", "")] * (HEADERS_MAX - 4))
    assert (await caller.ask(request)).status == 431
    assert await caller.is_closed()


@row(49)
async def test_requests_before_too_many_headers_are_answered(relay: Relay, caller: Caller) -> None:
    caller.write(post(EVENT) + with_headers(HEADERS_MAX + 1) + post(OTHER))
    answer = await caller.answer()
    assert (answer.status, answer.headers["connection"]) == (202, "close")
    assert await caller.is_closed()
    assert relay.stored() == 1
    assert await relay.counts("relay_rejected_total") == {("headers", "unknown"): 1}


@row(49)
async def test_the_admin_listener_takes_no_more_headers_either(relay: Relay) -> None:
    port = relay.service.admin.port
    async with Caller(*await asyncio.open_connection("127.0.0.1", port)) as caller:
        request = head("GET", "/healthz", *[("a", "")] * (HEADERS_MAX + 1))
        assert (await caller.ask(request)).status == 431
        assert await caller.is_closed()
    assert await relay.counts("relay_rejected_total") == {}
