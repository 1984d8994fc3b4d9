"""Every odd signature, body and id of hostile-requests.md, section 7, gets its answer from a relay.

The numbers in a test's id are rows of that table; others stand in `test_hostile_http.py` and
`test_hostile_operation.py`, and the last test of all sees to it that none is left out.
"""

import asyncio

import pytest

from tests.caller import SECRET, Caller, head, now_s, post, signed
from tests.loop_watch import UvLoop
from tests.receiver.hostile import (
    EVENT,
    HEADERS,
    READABLE,
    UNAUTHORIZED,
    UNREADABLE,
    Body,
    Odd,
    Sender,
)
from tests.receiver.rows import row
from tests.service import Relay
from tests.stub_server import StubServer

ACCEPTED = b'{"status":"accepted","id":"evt_1"}'
DUPLICATE = b'{"status":"duplicate","id":"evt_1"}'


@pytest.fixture(autouse=True)
def _row() -> None:
    """Takes the numbers that `row` puts into a test's id."""


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio", {"loop_factory": UvLoop}


@pytest.mark.parametrize("odd", HEADERS, ids=lambda odd: odd.id)
async def test_an_odd_signature_header_gets_its_answer(relay: Relay, odd: Odd) -> None:
    sender = Sender(SECRET.encode(), now_s(), EVENT)
    lines = [("Service-Signature", line) for line in odd.lines(sender)]
    answer = await relay.ask(post(EVENT, *lines, sign=False))
    if odd.reason is None:
        assert (answer.status, answer.body) == (202, ACCEPTED)
        assert relay.stored() == 1
    else:
        assert (answer.status, answer.body) == (401, UNAUTHORIZED)
        await relay.assert_refused(odd.reason, 401)


async def test_all_401_responses_are_alike(caller: Caller) -> None:
    sender = Sender(SECRET.encode(), now_s(), EVENT)
    told = set()
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
    await relay.assert_refused("mismatch", 401)


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
async def test_an_unusual_event_is_an_event(relay: Relay, body: bytes) -> None:
    assert (await relay.ask(post(body))).status == 202
    assert relay.stored() == 1


@row(34, 38)
async def test_a_repeated_request_is_acknowledged_and_not_delivered_again(
    relay: Relay, destination: StubServer
) -> None:
    request = post(EVENT)
    first, *others = [await relay.ask(request) for _ in range(4)]
    assert (first.status, first.body) == (202, ACCEPTED)
    assert {(other.status, other.body) for other in others} == {(200, DUPLICATE)}
    await relay.until_counted("relay_deliveries_total", "delivered", "all")
    assert [request.target for request in destination.requests] == ["/all"]
    assert await relay.counts("relay_events_total") == {
        ("video.ready", "accepted", "main"): 1,
        ("video.ready", "duplicate", "main"): 3,
    }


@row(35)
async def test_a_known_id_with_another_body_is_a_duplicate_and_the_first_stays(
    relay: Relay, destination: StubServer
) -> None:
    other = EVENT.replace(b"{}", b"[]")
    assert (await relay.ask(post(EVENT))).body == ACCEPTED
    answer = await relay.ask(post(other))
    assert (answer.status, answer.body) == (200, DUPLICATE)
    await relay.until_counted("relay_deliveries_total", "delivered", "all")
    assert [request.body for request in destination.requests] == [EVENT]
    assert (await relay.counts("relay_events_total"))["video.ready", "conflict", "main"] == 1
    assert relay.lines("event.conflict")[0]["id"] == "evt_1"


@row(36)
async def test_the_same_event_many_times_at_once_is_one_event(
    relay: Relay, destination: StubServer
) -> None:
    answers = await asyncio.gather(*(relay.ask(post(EVENT)) for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [200] * 19 + [202]
    await relay.until_counted("relay_deliveries_total", "delivered", "all")
    assert (relay.stored(), len(destination.requests)) == (1, 1)


@row(37)
async def test_an_unknown_kind_goes_where_all_goes(relay: Relay, destination: StubServer) -> None:
    body = EVENT.replace(b"video.ready", b"video.transcribed")
    assert (await relay.ask(post(body))).status == 202
    await relay.until_counted("relay_deliveries_total", "delivered", "all")
    assert [request.target for request in destination.requests] == ["/all"]
    assert await relay.counts("relay_events_total") == {("other", "accepted", "main"): 1}


@row(45)
async def test_a_content_encoding_changes_nothing_for_a_plain_body(relay: Relay) -> None:
    assert (await relay.ask(post(EVENT, ("Content-Encoding", "gzip")))).body == ACCEPTED


@row(46)
@pytest.mark.parametrize("type_", [b"", b"text/xml", b"application/json; charset=utf-16", b"\xff"])
async def test_the_content_type_is_not_looked_at(relay: Relay, type_: bytes) -> None:
    assert (await relay.ask(post(EVENT, ("Content-Type", type_)))).body == ACCEPTED


@row(55)
async def test_a_test_event_is_counted_and_goes_only_where_it_is_named(
    relay: Relay, destination: StubServer
) -> None:
    answer = await relay.ask(post(b'{"id":"evt_1","event":"webhook.test","data":["anything"]}'))
    assert (answer.status, answer.body) == (202, ACCEPTED)
    await relay.until_counted("relay_deliveries_total", "delivered", "tests")
    assert [request.target for request in destination.requests] == ["/tests"]
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


async def test_requests_that_come_in_one_go_are_answered_in_their_order(caller: Caller) -> None:
    bodies = [EVENT.replace(b"evt_1", b"evt_%d" % number) for number in range(20)]
    caller.write(b"".join(post(body) for body in bodies))
    ids = [(await caller.answer()).content["id"] for _ in bodies]
    assert ids == [f"evt_{number}" for number in range(20)]


async def test_a_sender_that_expects_100_continue_gets_it(caller: Caller) -> None:
    request = post(EVENT, ("Expect", "100-continue"))
    cut = request.index(b"\r\n\r\n") + 4
    assert (await caller.ask(request[:cut], bodiless=True)).status == 100
    assert (await caller.ask(request[cut:])).status == 202
