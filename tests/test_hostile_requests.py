"""Every request of hostile-requests.md, section 7, gets its answer from a running relay.

Numbers in brackets behind a test's name are the rows of that table.
What is the operator's side of it stands in `test_hostile_operation.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests import service
from tests.hostile import HEADERS, READABLE, UNREADABLE, Body, Odd, Sender
from tests.rows import row
from tests.service import Relay, head, now_s, post, signed
from tests.sinks.far_end import FarEnd, until

UNAUTHORIZED = b'{"status":"unauthorized"}'
EVENT = b'{"id":"evt_1","event":"video.ready","createdAt":"2026-03-02T09:30:00.000Z","data":{}}'
ACCEPTED = b'{"status":"accepted","id":"evt_1"}'
DUPLICATE = b'{"status":"duplicate","id":"evt_1"}'
LIMIT = 1024
"""The smallest `max_body` that a config may have."""

SERVER = """
max_body = "1KiB"
body_timeout = "250ms"
"""


@pytest.fixture(autouse=True)
def _row() -> None:
    """Takes the numbers that `row` puts into a test's id."""


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def far_end() -> AsyncIterator[FarEnd]:
    async with FarEnd() as far_end:
        yield far_end


@pytest.fixture
async def relay(tmp_path: Path, far_end: FarEnd) -> AsyncIterator[Relay]:
    async with service.serving(service.read(tmp_path, far_end=far_end)) as relay:
        yield relay


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Relay]:
    """A relay that takes little, and not for long."""
    async with service.serving(service.read(tmp_path, server=SERVER)) as relay:
        yield relay


async def assert_refused(relay: Relay, reason: str, code: int, *, source: str = "main") -> None:
    """One refusal was counted under its reason and code, and nothing was stored."""
    assert await relay.counts("relay_rejected_total") == {(reason, source): 1}
    assert await relay.counts("relay_requests_total") == {(str(code), source): 1}
    assert (relay.stored(), relay.stored("unreadable")) == (0, 0)
    assert await relay.counts("relay_events_total") == {}
    (line,) = relay.lines("request.refused")
    assert (line["source"], line["reason"], line["code"]) == (source, reason, code)


@pytest.mark.parametrize("odd", HEADERS, ids=lambda odd: odd.id)
async def test_an_odd_signature_header_gets_its_answer(relay: Relay, odd: Odd) -> None:
    sender = Sender(service.SECRET.encode(), now_s(), EVENT)
    lines = [("Service-Signature", line) for line in odd.lines(sender)]
    answer = await relay.ask(post(EVENT, *lines, sign=False))
    if odd.reason is None:
        assert (answer.status, answer.body) == (202, ACCEPTED)
        assert relay.stored() == 1
    else:
        assert (answer.status, answer.body) == (401, UNAUTHORIZED)
        await assert_refused(relay, odd.reason, 401)


async def test_no_401_tells_more_than_another(relay: Relay) -> None:
    sender = Sender(service.SECRET.encode(), now_s(), EVENT)
    told = set()
    async with await relay.call() as caller:
        for odd in HEADERS:
            if odd.reason is not None:
                lines = [("Service-Signature", line) for line in odd.lines(sender)]
                answer = await caller.ask(post(EVENT, *lines, sign=False))
                del answer.headers["date"]
                told.add((answer.status, answer.body, *answer.headers.items()))
    assert len(told) == 1


@row(29)
@pytest.mark.parametrize(
    "sent", [EVENT.replace(b"evt_1", b"evt_2"), EVENT + b"\n", EVENT.replace(b",", b", "), b""]
)
async def test_a_body_that_was_changed_on_its_way_is_refused(relay: Relay, sent: bytes) -> None:
    answer = await relay.ask(post(sent, ("Service-Signature", signed(EVENT)), sign=False))
    assert (answer.status, answer.body) == (401, UNAUTHORIZED)
    await assert_refused(relay, "mismatch", 401)


@pytest.mark.parametrize("odd", UNREADABLE, ids=lambda odd: odd.id)
async def test_a_verified_body_without_an_event_is_kept_once_and_acknowledged(
    relay: Relay, odd: Body
) -> None:
    for _ in range(2):
        answer = await relay.ask(post(odd.body))
        assert (answer.status, answer.body) == (200, b'{"status":"unreadable"}')
    assert (relay.stored(), relay.stored("unreadable"), relay.stored("deliveries")) == (0, 1, 0)
    events = await relay.counts("relay_events_total")
    assert events == {("other", "unreadable", "main"): 2}
    assert await relay.counts("relay_rejected_total") == {}
    assert relay.lines("event.unreadable")[0]["reason"] == odd.reason


@row(33)
@pytest.mark.parametrize("body", READABLE.values(), ids=READABLE)
async def test_an_odd_event_is_an_event(relay: Relay, body: bytes) -> None:
    assert (await relay.ask(post(body))).status == 202
    assert relay.stored() == 1


@row(34, 38)
async def test_a_request_that_comes_again_is_acknowledged_and_goes_nowhere(
    relay: Relay, far_end: FarEnd
) -> None:
    request = post(EVENT)
    first, *others = [await relay.ask(request) for _ in range(4)]
    assert (first.status, first.body) == (202, ACCEPTED)
    assert {(other.status, other.body) for other in others} == {(200, DUPLICATE)}
    await relay.until_counted("relay_deliveries_total", "delivered", "all")
    assert [request.target for request in far_end.requests] == ["/all"]
    assert await relay.counts("relay_events_total") == {
        ("video.ready", "accepted", "main"): 1,
        ("video.ready", "duplicate", "main"): 3,
    }


@row(35)
async def test_a_known_id_with_another_body_is_a_duplicate_and_the_first_stays(
    relay: Relay, far_end: FarEnd
) -> None:
    other = EVENT.replace(b"{}", b"[]")
    assert (await relay.ask(post(EVENT))).body == ACCEPTED
    answer = await relay.ask(post(other))
    assert (answer.status, answer.body) == (200, DUPLICATE)
    await relay.until_counted("relay_deliveries_total", "delivered", "all")
    assert [request.body for request in far_end.requests] == [EVENT]
    assert (await relay.counts("relay_events_total"))["video.ready", "conflict", "main"] == 1
    assert relay.lines("event.conflict")[0]["id"] == "evt_1"


@row(36)
async def test_the_same_event_many_times_at_once_is_one_event(
    relay: Relay, far_end: FarEnd
) -> None:
    answers = await asyncio.gather(*(relay.ask(post(EVENT)) for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [200] * 19 + [202]
    await relay.until_counted("relay_deliveries_total", "delivered", "all")
    assert (relay.stored(), len(far_end.requests)) == (1, 1)


@row(37)
async def test_an_unknown_kind_goes_where_all_goes(relay: Relay, far_end: FarEnd) -> None:
    body = EVENT.replace(b"video.ready", b"video.transcribed")
    assert (await relay.ask(post(body))).status == 202
    await relay.until_counted("relay_deliveries_total", "delivered", "all")
    assert [request.target for request in far_end.requests] == ["/all"]
    assert await relay.counts("relay_events_total") == {("other", "accepted", "main"): 1}


@row(40)
async def test_a_body_that_is_announced_too_large_is_not_waited_for(strict: Relay) -> None:
    async with await strict.call() as caller:
        lines = [("Host", "relay"), ("Content-Length", str(LIMIT + 1))]
        answer = await caller.ask(head("POST", service.PATH, *lines))
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert await caller.is_closed()
    await assert_refused(strict, "too_large", 413)


@row(40)
async def test_a_body_of_the_largest_size_is_taken(strict: Relay) -> None:
    body = EVENT.ljust(LIMIT)
    assert (await strict.ask(post(body))).status == 202
    assert (await strict.ask(post(body + b" "))).status == 413


@row(41)
async def test_a_chunked_body_is_stopped_at_the_limit(strict: Relay) -> None:
    async with await strict.call() as caller:
        caller.write(chunked(EVENT.ljust(LIMIT + 1)).removesuffix(b"0\r\n\r\n"))
        answer = await caller.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert await caller.is_closed()
    await assert_refused(strict, "too_large", 413)


@row(41)
async def test_a_chunked_body_within_the_limit_is_taken(strict: Relay) -> None:
    assert (await strict.ask(chunked(EVENT.ljust(LIMIT)))).status == 202


@row(42)
@pytest.mark.parametrize("sent", [0, 10, len(EVENT)])
async def test_a_body_that_stalls_is_given_up(strict: Relay, sent: int) -> None:
    request = post(EVENT).replace(b"Content-Length: 8", b"Content-Length: 9")
    cut = request.index(b"\r\n\r\n") + 4 + sent
    async with await strict.call() as caller:
        answer = await caller.ask(request[:cut])
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert await caller.is_closed()
    await assert_refused(strict, "timeout", 408)


@row(42)
async def test_a_body_that_drips_is_given_up_though_it_never_stalls(strict: Relay) -> None:
    request = post(EVENT.ljust(LIMIT))
    cut = request.index(b"\r\n\r\n") + 4
    async with await strict.call() as caller:
        caller.write(request[:cut])
        dripping = asyncio.create_task(_drip(caller, request[cut:]))
        answer = await caller.answer()
        dripping.cancel()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
    await assert_refused(strict, "timeout", 408)


@row(42)
async def test_a_sender_that_leaves_amid_its_body_leaves_nothing(relay: Relay) -> None:
    async with await relay.call() as caller:
        caller.write(post(EVENT)[:-5])
    await relay.until_counted("relay_rejected_total", "disconnected", "main")
    await assert_refused(relay, "disconnected", 408)


@row(42)
async def test_what_comes_behind_the_announced_length_is_another_request(relay: Relay) -> None:
    async with await relay.call() as caller:
        assert (await caller.ask(post(EVENT))).status == 202
        assert (await caller.ask(b"more")).status == 400
        assert await caller.is_closed()
    assert relay.stored() == 1


@row(43)
async def test_an_event_whose_sender_has_left_is_stored_and_delivered(
    relay: Relay, far_end: FarEnd
) -> None:
    async with await relay.call() as caller:
        caller.write(post(EVENT))
    await relay.until_counted("relay_events_total", "video.ready", "accepted", "main")
    await until(lambda: len(far_end.requests) == 1, what="the delivery")
    assert relay.stored() == 1


@row(45)
async def test_a_content_encoding_changes_nothing_for_a_plain_body(relay: Relay) -> None:
    assert (await relay.ask(post(EVENT, ("Content-Encoding", "gzip")))).body == ACCEPTED


@row(46)
@pytest.mark.parametrize("type_", [b"", b"text/xml", b"application/json; charset=utf-16", b"\xff"])
async def test_the_content_type_is_not_looked_at(relay: Relay, type_: bytes) -> None:
    assert (await relay.ask(post(EVENT, ("Content-Type", type_)))).body == ACCEPTED


@row(47)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "DELETE", "PATCH", "TRACE"])
async def test_another_method_is_told_what_is_allowed(relay: Relay, method: str) -> None:
    request = post(EVENT).replace(b"POST", method.encode(), 1)
    answer = await relay.ask(request, bodiless=method == "HEAD")
    assert (answer.status, answer.headers["allow"]) == (405, "post")
    await assert_refused(relay, "method", 405)


@row(48)
@pytest.mark.parametrize(
    "target",
    ["/webhooks", "/webhooks/", "/webhooks?secret=x", "/webhooks/?", "http://elsewhere/webhooks"],
)
async def test_the_path_is_found_with_and_without_a_slash(relay: Relay, target: str) -> None:
    assert (await relay.ask(post(EVENT, target=target))).body == ACCEPTED


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
    await assert_refused(relay, "path", 404, source="unknown")


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
        pytest.param(lambda it: it.replace(b"HTTP/1.1", b"HTTP/9.9", 1), id="version"),
        pytest.param(lambda it: it.replace(b"POST", b"P\xd6ST", 1), id="method"),
        pytest.param(lambda it: it.replace(b"/webhooks", b"/webh\xd6oks", 1), id="target"),
        pytest.param(lambda it: it.replace(b"/webhooks", b"http://:x:/", 1), id="authority"),
        pytest.param(lambda _: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="http-2"),
        pytest.param(lambda _: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="tls"),
    ],
)
async def test_what_is_not_http_is_told_so_and_stores_nothing(
    relay: Relay, spoil: Callable[[bytes], bytes]
) -> None:
    async with await relay.call() as caller:
        assert (await caller.ask(spoil(post(EVENT)))).status == 400
        assert await caller.is_closed()
    assert relay.stored() == 0
    assert (await relay.ask(post(EVENT))).status == 202


@row(49)
async def test_a_bad_chunk_stores_nothing(relay: Relay) -> None:
    async with await relay.call() as caller:
        request = chunked(EVENT).replace(b"0\r\n\r\n", b"zz\r\n\r\n")
        assert (await caller.ask(request)).status == 400
        assert await caller.is_closed()
    assert relay.stored() == 0


@row(49)
@pytest.mark.parametrize("upgrade", ["websocket", "h2c", "anything"])
async def test_a_body_behind_an_upgrade_is_never_taken_for_the_next_request(
    relay: Relay, upgrade: str
) -> None:
    inner = post(EVENT)
    lines = [("Connection", "Upgrade"), ("Upgrade", upgrade)]
    async with await relay.call() as caller:
        outer = post(inner, *lines)
        cut = outer.index(b"\r\n\r\n") + 4
        answer = await caller.ask(outer[:cut])
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        caller.write(outer[cut:])
        assert await caller.is_closed()
    assert relay.stored() == 0


@row(55)
async def test_a_test_event_is_counted_and_goes_only_where_it_is_named(
    relay: Relay, far_end: FarEnd
) -> None:
    answer = await relay.ask(post(b'{"id":"evt_1","event":"webhook.test","data":["anything"]}'))
    assert (answer.status, answer.body) == (202, ACCEPTED)
    await relay.until_counted("relay_deliveries_total", "delivered", "tests")
    assert [request.target for request in far_end.requests] == ["/tests"]
    assert await relay.counts("relay_events_total") == {("webhook.test", "accepted", "main"): 1}


async def test_a_connection_stays_good_after_refusals_whose_bodies_were_read(relay: Relay) -> None:
    forged = post(EVENT, ("Service-Signature", "t=1,v1=" + "0" * 64), sign=False)
    async with await relay.call() as caller:
        assert (await caller.ask(forged)).status == 401
        assert (await caller.ask(post(EVENT, target="/nowhere"))).status == 404
        assert (await caller.ask(post(EVENT).replace(b"POST", b"PUT", 1))).status == 405
        assert (await caller.ask(head("HEAD", "/", ("Host", "a")), bodiless=True)).status == 404
        assert (await caller.ask(post(EVENT))).status == 202
        assert (await caller.ask(post(EVENT))).status == 200


async def test_requests_that_come_in_one_go_are_answered_in_their_order(relay: Relay) -> None:
    bodies = [EVENT.replace(b"evt_1", b"evt_%d" % number) for number in range(20)]
    async with await relay.call() as caller:
        caller.write(b"".join(post(body) for body in bodies))
        ids = [(await caller.answer()).content["id"] for _ in bodies]
    assert ids == [f"evt_{number}" for number in range(20)]


async def test_a_sender_that_asks_before_it_sends_its_body_is_told_to_go_on(relay: Relay) -> None:
    request = post(EVENT, ("Expect", "100-continue"))
    cut = request.index(b"\r\n\r\n") + 4
    async with await relay.call() as caller:
        assert (await caller.ask(request[:cut], bodiless=True)).status == 100
        assert (await caller.ask(request[cut:])).status == 202


def chunked(body: bytes) -> bytes:
    """A signed request whose body comes in chunks of 100 bytes."""
    pieces = [body[at : at + 100] for at in range(0, len(body), 100)]
    lines = [("Host", "a"), ("Transfer-Encoding", "chunked"), ("Service-Signature", signed(body))]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head("POST", service.PATH, *lines) + chunks + b"0\r\n\r\n"


async def _drip(caller: service.Caller, body: bytes) -> None:
    for at in range(len(body)):
        caller.write(body[at : at + 1])
        await asyncio.sleep(0.02)


