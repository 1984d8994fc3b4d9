"""Responses that come before their request's body: the next request is served, or none can come.

A sender that asks for "100 Continue" may leave the body out when it gets another response
(RFC 9110, 10.1.1), so nothing tells what follows on its connection. Others send it.
"""

import asyncio

import pytest

from tests.caller import PATH, Caller, head, post
from tests.receiver.hostile import EVENT
from tests.service import Relay

EXPECT = ("Expect", "100-continue")
LENGTH = ("Content-Length", str(len(EVENT)))
TOO_LONG = ("Content-Length", str(2 << 20))
CHUNKED = ("Transfer-Encoding", "chunked")

EARLY = {
    "404": head("POST", "/elsewhere", LENGTH),
    "405": head("PUT", PATH, LENGTH),
    "413": head("POST", PATH, TOO_LONG),
    "404-chunked": head("POST", "/elsewhere", CHUNKED),
    "405-chunked": head("DELETE", PATH, CHUNKED),
}
"""Heads whose response needs no body, by its code."""

early = pytest.mark.parametrize(("name", "request_head"), EARLY.items(), ids=list(EARLY))


def expecting(request: bytes) -> bytes:
    return request.replace(b"\r\n", b"\r\nExpect: 100-continue\r\n", 1)


@early
async def test_an_early_response_to_a_sender_that_waits_closes_the_connection(
    relay: Relay, name: str, request_head: bytes, caller: Caller
) -> None:
    answer = await caller.ask(expecting(request_head))
    assert (answer.status, answer.headers["connection"]) == (int(name[:3]), "close")
    caller.write(post(EVENT))
    assert await caller.is_closed()
    assert relay.stored() == 0


@early
async def test_a_request_behind_an_early_response_is_not_taken_for_its_body_or_answered(
    relay: Relay, name: str, request_head: bytes, caller: Caller
) -> None:
    caller.write(expecting(request_head))
    assert (await caller.answer()).status == int(name[:3])
    caller.write(post(EVENT) * 3)
    assert await caller.is_closed()
    assert relay.stored() == 0


async def test_requests_before_an_early_response_are_answered_first(caller: Caller) -> None:
    caller.write(post(EVENT) + post(EVENT) + expecting(EARLY["404"]))
    answers = [await caller.answer() for _ in range(3)]
    assert [answer.status for answer in answers] == [202, 200, 404]
    assert [answer.headers.get("connection") for answer in answers] == [None, None, "close"]
    assert await caller.is_closed()


@pytest.mark.parametrize("name", ["404", "405"])
async def test_where_the_body_has_come_the_next_request_is_served(relay: Relay, name: str) -> None:
    async with await relay.call() as caller:
        for form in (expecting, bytes):
            answer = await caller.ask(form(EARLY[name]) + EVENT)
            assert (answer.status, answer.headers.get("connection")) == (int(name), None)
        assert (await caller.ask(post(EVENT))).status == 202


@pytest.mark.parametrize("name", ["404", "405"])
async def test_a_body_that_comes_behind_its_response_is_dropped(name: str, caller: Caller) -> None:
    answer = await caller.ask(EARLY[name])
    assert (answer.status, answer.headers.get("connection")) == (int(name), None)
    assert (await caller.ask(EVENT + post(EVENT))).status == 202


async def test_a_body_too_large_ends_its_connection_whether_or_not_it_comes(relay: Relay) -> None:
    async with await relay.call() as caller:
        answer = await caller.ask(EARLY["413"] + post(EVENT))
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert await caller.is_closed()
    assert relay.stored() == 0


@pytest.mark.parametrize("expects", [True, False])
async def test_http_1_0_gets_no_interim_response(expects: bool, caller: Caller) -> None:
    """It would take it for the response (RFC 9110, 10.1.1)."""
    lines = [EXPECT] if expects else []
    request = post(EVENT, *lines).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    caller.write(request[: -len(EVENT)])
    caller.write(EVENT)
    assert (await caller.answer()).status == 202
    assert await caller.is_closed()


async def test_an_early_response_to_http_1_0_closes_too(caller: Caller) -> None:
    request = expecting(EARLY["404"]).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    assert (await caller.ask(request)).status == 404
    caller.write(post(EVENT))
    assert await caller.is_closed()


async def test_a_relay_that_stops_answers_503_and_closes(relay: Relay, caller: Caller) -> None:
    relay.service._public_side.receiver.draining = True
    answer = await caller.ask(expecting(head("POST", PATH, LENGTH)))
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert await caller.is_closed()
    relay.service._public_side.receiver.draining = False


async def test_an_early_401_of_the_admin_listener_closes_too(relay: Relay) -> None:
    port = relay.service.admin.port
    async with Caller(*await asyncio.open_connection("127.0.0.1", port)) as caller:
        answer = await caller.ask(expecting(head("POST", "/api/v1/replays", LENGTH)))
        assert answer.status in (401, 404)
        assert answer.headers["connection"] == "close"
        assert await caller.is_closed()
