"""The sender behaves as the video service documents (video-service.md, section 6)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from relay.core import signature
from relay.core.clock import SystemClock
from relay.core.config_values import Secret
from relay.core.delivery_rules import WAITS_S
from relay.video_service.sender import Sender, SendOutcome
from tests.conftest import ManualClock
from tests.stub_server import Reply, Request, Script, StubServer

SECRET = "a-secret-of-the-sender"
BODY = b'{"id": "evt_1",  "event": "webhook.test", "createdAt": null, "data": {}}'

Make = Callable[..., Sender]


@pytest.fixture
async def peer() -> AsyncIterator[StubServer]:
    async with StubServer() as peer:
        yield peer


@pytest.fixture
async def sender(peer: StubServer, clock: ManualClock) -> AsyncIterator[Make]:
    """Creates senders whose waits take no time but advance the clock."""
    senders: list[Sender] = []

    async def sleep(seconds: float) -> None:
        clock.ms += round(seconds * 1000)

    def make(**changes: Any) -> Sender:
        options: dict[str, Any] = {"clock": clock, "sleep": sleep} | changes
        senders.append(Sender(peer.url("/webhooks"), Secret(SECRET), **options))
        return senders[-1]

    yield make
    for each in senders:
        await each.close()


def statuses(*codes: int) -> Script:
    left = iter(codes)
    return lambda _: Reply(next(left))


def verified(request: Request, *, now_s: int, secret: str = SECRET) -> bool:
    value = request.header["service-signature"].encode()
    signature.verify([value], request.body, secrets=[secret.encode()], now_s=now_s, tolerance_ms=0)
    return True


async def test_a_request_has_the_documented_form(
    peer: StubServer, sender: Make, clock: ManualClock
) -> None:
    sent = await sender().send(BODY)
    (request,) = peer.requests
    assert sent.acknowledged
    assert (request.method, request.target) == ("POST", "/webhooks")
    assert request.header["user-agent"] == "Service-Webhooks/1"
    assert request.header["content-type"] == "application/json"
    assert request.body == BODY
    assert verified(request, now_s=clock.ms // 1000)


async def test_a_failure_is_tried_six_times_with_doubling_waits(
    peer: StubServer, sender: Make, clock: ManualClock
) -> None:
    peer.reply = lambda _: Reply(503)
    started_ms = clock.ms
    waits: list[float | None] = []
    sent = await sender().send(BODY, watch=lambda _, next_s: waits.append(next_s))
    assert not sent.acknowledged
    assert [each.status for each in sent.attempts] == [503] * 6
    assert waits == [20, 40, 80, 160, 320, None]
    assert clock.ms - started_ms == 620_000


async def test_the_time_is_renewed_on_each_attempt(
    peer: StubServer, sender: Make, clock: ManualClock
) -> None:
    peer.reply = statuses(500, 500, 200)
    started_s = clock.ms // 1000
    await sender().send(BODY)
    assert [verified(peer.requests[i], now_s=started_s + s) for i, s in ((0, 0), (1, 20), (2, 60))]


async def test_it_stops_at_the_first_acknowledgement(peer: StubServer, sender: Make) -> None:
    peer.reply = statuses(500, 204)
    sent = await sender().send(BODY)
    assert sent.acknowledged
    assert [each.status for each in sent.attempts] == [500, 204]


async def test_a_redirect_is_a_failure_and_is_not_followed(peer: StubServer, sender: Make) -> None:
    peer.reply = lambda _: Reply(307, headers={"location": peer.url("/elsewhere")})
    sent = await sender(schedule=()).send(BODY)
    assert not sent.acknowledged
    assert [request.target for request in peer.requests] == ["/webhooks"]


async def test_an_answer_that_takes_too_long_is_a_failure(peer: StubServer, sender: Make) -> None:
    peer.reply = lambda _: None
    (attempted,) = (await sender(schedule=(), timeout_s=0.05).send(BODY)).attempts
    assert (attempted.status, attempted.reason) == (None, "no answer within 0.05 s")


async def test_a_receiver_that_is_down_is_a_failure_with_its_reason(
    peer: StubServer, sender: Make
) -> None:
    await peer.stop()
    (attempted,) = (await sender(schedule=()).send(BODY)).attempts
    assert (attempted.status, attempted.reason) == (None, "connection refused")


async def test_a_connection_cut_without_an_answer_is_a_failure(
    peer: StubServer, sender: Make
) -> None:
    peer.reply = lambda _: b""
    (attempted,) = (await sender(schedule=()).send(BODY)).attempts
    assert attempted.status is None
    assert attempted.reason == "the connection ended without an answer"


async def test_the_outcome_in_the_relays_response_is_read(peer: StubServer, sender: Make) -> None:
    peer.reply = lambda _: Reply(200, b'{"status":"duplicate","id":"evt_1"}')
    assert (await sender().attempt(BODY)).outcome == "duplicate"


@pytest.mark.parametrize(
    "answer", [b"", b"OK", b"[]", b'{"status":200}', b'{"status":"' + b"x" * 9999]
)
async def test_another_receivers_response_has_no_outcome(
    peer: StubServer, sender: Make, answer: bytes
) -> None:
    peer.reply = lambda _: Reply(200, answer)
    attempted = await sender().attempt(BODY)
    assert attempted.acknowledged
    assert attempted.outcome == ""


async def test_the_secret_can_be_replaced_between_attempts(
    peer: StubServer, sender: Make, clock: ManualClock
) -> None:
    peer.reply = statuses(401, 202)
    sending = sender()

    def rotate(_: SendOutcome, __: float | None) -> None:
        sending.secret = Secret("the-secret-after-it")

    await sending.send(BODY, watch=rotate)
    assert verified(peer.requests[1], now_s=clock.ms // 1000, secret="the-secret-after-it")


async def test_time_scale_shortens_the_waits_only(peer: StubServer, sender: Make) -> None:
    peer.reply = lambda _: Reply(500)
    waits: list[float | None] = []
    await sender(time_scale=0.5).send(BODY, watch=lambda _, next_s: waits.append(next_s))
    assert waits == [*(wait / 2 for wait in WAITS_S), None]


async def test_many_attempts_run_at_once(peer: StubServer, sender: Make) -> None:
    peer.reply = lambda _: None
    sending = sender(schedule=(), clock=SystemClock(), timeout_s=30, connections=80)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sending.send(BODY)) for _ in range(80)]
        async with asyncio.timeout(5):
            while len(peer.requests) < len(tasks):
                await asyncio.sleep(0.005)
        await peer.stop()
    assert not any(task.result().acknowledged for task in tasks)


async def test_attempts_beyond_the_connections_wait(peer: StubServer, sender: Make) -> None:
    sending = sender(schedule=(), clock=SystemClock(), connections=2)
    sent = await asyncio.gather(*(sending.send(BODY) for _ in range(20)))
    assert all(each.acknowledged for each in sent)
    assert peer.accepted == 2


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8080", "ftp://host/x", "http://", "http://a:b/", "/x"]
)
async def test_an_invalid_url_is_refused(clock: ManualClock, url: str) -> None:
    with pytest.raises(ValueError, match="expected a URL"):
        Sender(url, Secret(SECRET), clock=clock)
