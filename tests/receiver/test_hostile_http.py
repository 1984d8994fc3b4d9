"""What is hardly HTTP, or too much or too slow of it (hostile-requests.md, rows 40 to 49)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests import service
from tests.caller import PATH, Caller, head, post, signed
from tests.loop_watch import UvLoop
from tests.receiver.hostile import EVENT
from tests.receiver.rows import row
from tests.service import Relay
from tests.stub_server import StubServer, until

LIMIT = 1024
"""The smallest `max_body` that a config may have."""


@pytest.fixture(autouse=True)
def _row() -> None:
    """Takes the numbers that `row` puts into a test's id."""


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio", {"loop_factory": UvLoop}


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Relay]:
    """A relay that takes little."""
    async with service.serving(service.read(tmp_path, server='max_body = "1KiB"')) as relay:
        yield relay


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[Relay]:
    """A relay that does not wait for long."""
    async with service.serving(service.read(tmp_path, server='body_timeout = "250ms"')) as relay:
        yield relay


@row(40)
async def test_a_body_that_is_announced_too_large_is_not_waited_for(strict: Relay) -> None:
    async with await strict.call() as caller:
        lines = [("Host", "relay"), ("Content-Length", str(LIMIT + 1))]
        answer = await caller.ask(head("POST", PATH, *lines))
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert await caller.is_closed()
    await strict.assert_refused("too_large", 413)


@row(40)
@pytest.mark.parametrize(("length", "code"), [("9" * 19, 413), ("9" * 30, 400), ("9" * 5000, 400)])
async def test_an_absurd_content_length_is_not_a_bug(relay: Relay, length: str, code: int) -> None:
    request = head("POST", PATH, ("Host", "relay"), ("Content-Length", length))
    assert (await relay.ask(request)).status == code
    assert relay.lines("receiver.bug") == []


@row(40, 41)
async def test_a_body_of_the_largest_size_is_taken(strict: Relay) -> None:
    body = EVENT.ljust(LIMIT)
    assert (await strict.ask(post(body))).status == 202
    assert (await strict.ask(chunked(body))).status == 200
    assert (await strict.ask(post(body + b" "))).status == 413


@row(41)
async def test_a_chunked_body_is_stopped_at_the_limit(strict: Relay) -> None:
    async with await strict.call() as caller:
        caller.write(chunked(EVENT.ljust(LIMIT + 1)).removesuffix(b"0\r\n\r\n"))
        answer = await caller.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert await caller.is_closed()
    await strict.assert_refused("too_large", 413)


@row(40, 41)
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
async def test_a_sender_that_reads_only_after_its_whole_body_learns_that_it_was_too_large(
    strict: Relay, announced: bool
) -> None:
    body = b"x" * (8 << 20)
    request = post(body) if announced else chunked(body)
    async with await strict.call() as caller:
        caller.write(request)
        await caller.flush()
        assert (await caller.answer()).status == 413
        assert await caller.is_closed()


@row(42)
@pytest.mark.parametrize("sent", [0, 10, len(EVENT)])
async def test_a_body_that_stalls_is_given_up(hasty: Relay, sent: int) -> None:
    request = post(EVENT).replace(b"Content-Length: 8", b"Content-Length: 9")
    cut = request.index(b"\r\n\r\n") + 4 + sent
    async with await hasty.call() as caller:
        answer = await caller.ask(request[:cut])
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert await caller.is_closed()
    await hasty.assert_refused("timeout", 408)


@row(42)
async def test_a_body_that_trickles_in_is_abandoned_although_it_never_stalls(hasty: Relay) -> None:
    request = post(EVENT.ljust(LIMIT))
    cut = request.index(b"\r\n\r\n") + 4
    async with await hasty.call() as caller:
        caller.write(request[:cut])
        dripping = asyncio.create_task(_drip(caller, request[cut:]))
        answer = await caller.answer()
        dripping.cancel()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
    await hasty.assert_refused("timeout", 408)


@row(42)
async def test_a_request_cut_off_within_its_body_stores_nothing(relay: Relay) -> None:
    async with await relay.call() as caller:
        caller.write(post(EVENT)[:-5])
    await relay.until_counted("relay_rejected_total", "disconnected", "main")
    await relay.assert_refused("disconnected", 408)


@row(42)
async def test_bytes_beyond_the_content_length_are_another_request(relay: Relay) -> None:
    async with await relay.call() as caller:
        assert (await caller.ask(post(EVENT))).status == 202
        assert (await caller.ask(b"more")).status == 400
        assert await caller.is_closed()
    assert relay.stored() == 1
    counted = await relay.counts("relay_requests_total")
    assert counted == {("202", "main"): 1, ("400", "unknown"): 1}


@row(43)
async def test_an_event_whose_sender_has_left_is_stored_and_delivered(
    relay: Relay, destination: StubServer, caller: Caller
) -> None:
    caller.write(post(EVENT))
    await relay.until_counted("relay_events_total", "video.ready", "accepted", "main")
    await until(lambda: len(destination.requests) == 1, what="the delivery")
    assert relay.stored() == 1


@row(47)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "DELETE", "PATCH", "TRACE"])
async def test_another_method_gets_the_allowed_ones(relay: Relay, method: str) -> None:
    request = post(EVENT).replace(b"POST", method.encode(), 1)
    answer = await relay.ask(request, bodiless=method == "HEAD")
    assert (answer.status, answer.headers["allow"]) == (405, "post")
    await relay.assert_refused("method", 405)


@row(48)
@pytest.mark.parametrize(
    "target",
    ["/webhooks", "/webhooks/", "/webhooks?secret=x", "/webhooks/?", "http://elsewhere/webhooks"],
)
async def test_the_path_is_found_with_and_without_a_slash(relay: Relay, target: str) -> None:
    assert (await relay.ask(post(EVENT, target=target))).status == 202


@row(48)
@pytest.mark.parametrize(
    "target",
    [
        *("/", "//webhooks", "/webhooks//", "/a/../webhooks", "/./webhooks", "/webhooks/x"),
        *("/%77ebhooks", "/webhooks%2f", "/webhooks%00", "/webhooks%0d%0aa:b", "/WEBHOOKS"),
        *("/webhook", "/webhookss", "/webhooks;a=b", "/metrics", "/healthz", "/readyz"),
    ],
)
async def test_any_other_path_is_not_found(relay: Relay, target: str) -> None:
    answer = await relay.ask(post(EVENT, target=target))
    assert (answer.status, answer.body) == (404, b'{"status":"not found"}')
    await relay.assert_refused("path", 404, source="unknown")


def _with(*lines: bytes) -> Callable[[bytes], bytes]:
    return lambda request: request.replace(b"Host:", b"\r\n".join([*lines, b"Host:"]), 1)


@row(49)
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(_with(b"Transfer-Encoding: chunked"), id="length-and-chunked"),
        pytest.param(_with(b"Content-Length: 5"), id="two-lengths"),
        pytest.param(_with(b"Content-Length: -1"), id="negative-length"),
        pytest.param(_with(b"X-Odd: a\0b"), id="nul"),
        pytest.param(_with(b"Service-Signature: t=1,v1=\0"), id="nul-in-the-signature"),
        pytest.param(_with(b"X-Odd: a", b" folded"), id="folded-line"),
        pytest.param(_with(b"X-Odd : a"), id="blank-before-colon"),
        pytest.param(_with(b"X-Odd"), id="no-colon"),
        pytest.param(lambda it: it.replace(b"HTTP/1.1", b"HTTP/1.1x", 1), id="version"),
        pytest.param(lambda it: it.replace(b"POST", b"P\xd6ST", 1), id="method"),
        pytest.param(lambda it: it.replace(b"/webhooks", b"/webh\xd6oks", 1), id="target"),
        pytest.param(lambda it: it.replace(b"/webhooks", b"http://:x:/", 1), id="authority"),
        pytest.param(lambda _: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="tls"),
    ],
)
async def test_a_request_that_is_not_http_gets_an_error_and_stores_nothing(
    relay: Relay, spoil: Callable[[bytes], bytes], caller: Caller
) -> None:
    assert (await caller.ask(spoil(post(EVENT)))).status == 400
    assert await caller.is_closed()
    assert relay.stored() == 0
    assert await relay.counts("relay_requests_total") == {("400", "unknown"): 1}
    assert await relay.counts("relay_rejected_total") == {}
    assert (await relay.ask(post(EVENT))).status == 202


async def test_malformed_requests_on_the_admin_listener_are_not_counted_for_the_public_one(
    relay: Relay,
) -> None:
    port = relay.service.admin.port
    async with Caller(*await asyncio.open_connection("127.0.0.1", port)) as caller:
        assert (await caller.ask(b"no HTTP\r\n\r\n")).status == 400
    assert await relay.counts("relay_requests_total") == {}


@row(49)
async def test_a_bad_chunk_stores_nothing(relay: Relay, caller: Caller) -> None:
    request = chunked(EVENT).replace(b"0\r\n\r\n", b"zz\r\n\r\n")
    assert (await caller.ask(request)).status == 400
    assert await caller.is_closed()
    assert relay.stored() == 0
    # It is one request, and was one before its body turned out to be none.
    await relay.until_counted("relay_requests_total", "408", "main")
    assert await relay.counts("relay_requests_total") == {("408", "main"): 1}


@row(3, 49)
@pytest.mark.parametrize(
    "begun",
    [b"POST /webhooks HTTP/1.1\r\nX-Odd: ", b"POST /webhooks?", b"\r\n" * 1_000],
    ids=["header", "target", "blank-lines"],
)
async def test_a_head_without_end_is_given_up_before_it_costs(begun: bytes, caller: Caller) -> None:
    caller.write(begun + b"a" * (4 << 20))
    await caller.flush()
    answer = await caller.answer()
    assert (answer.status, answer.headers["connection"]) == (400, "close")
    assert await caller.is_closed()


@row(3, 49)
async def test_trailers_without_end_are_given_up_too(relay: Relay, caller: Caller) -> None:
    caller.write(chunked(EVENT).removesuffix(b"\r\n") + b"X-Odd: " + b"a" * (4 << 20))
    await caller.flush()
    assert (await caller.answer()).status == 400
    assert await caller.is_closed()
    assert relay.stored() == 0


@row(49)
async def test_requests_before_the_garbage_are_answered_in_order(relay: Relay) -> None:
    bodies = [EVENT, EVENT.replace(b"evt_1", b"evt_2")]
    async with await relay.call() as caller:
        caller.write(b"".join(post(body) for body in bodies) + b"\0garbage\r\n\r\n")
        answers = [await caller.answer() for _ in bodies]
        assert [answer.content["id"] for answer in answers] == ["evt_1", "evt_2"]
        assert [answer.headers.get("connection") for answer in answers] == [None, "close"]
        assert await caller.is_closed()
    (line, *_) = relay.lines("library.message")
    assert (line["level"], line["message"]) == ("warning", "Invalid HTTP request received.")


@row(42)
async def test_bytes_after_an_abandoned_body_are_not_a_request(hasty: Relay) -> None:
    late = EVENT.replace(b"evt_1", b"evt_2")
    async with await hasty.call() as caller:
        caller.write(post(EVENT)[:-5])
        assert (await caller.answer()).status == 408
        caller.write(post(EVENT)[-5:] + post(late))
        caller.end()
        assert await caller.is_closed()
    assert hasty.stored() == 0
    assert hasty.lines("library.message") == []


async def test_a_sender_that_ends_its_side_is_answered(caller: Caller) -> None:
    bodies = [EVENT, EVENT.replace(b"evt_1", b"evt_2")]
    caller.write(b"".join(post(body) for body in bodies))
    caller.end()
    assert [(await caller.answer()).status for _ in bodies] == [202, 202]
    assert await caller.is_closed()


def chunked(body: bytes) -> bytes:
    """A signed request whose body comes in chunks of 100 bytes."""
    pieces = [body[at : at + 100] for at in range(0, len(body), 100)]
    lines = [("Host", "a"), ("Transfer-Encoding", "chunked"), ("Service-Signature", signed(body))]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head("POST", PATH, *lines) + chunks + b"0\r\n\r\n"


async def _drip(caller: Caller, body: bytes) -> None:
    for at in range(len(body)):
        caller.write(body[at : at + 1])
        await asyncio.sleep(0.02)
