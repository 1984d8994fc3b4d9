"""The API's client, against a server that is slow, rude, limited, lying and down."""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest

from relay.core.api_settings import ApiSettings
from relay.core.config_values import Secret
from relay.core.request_budget import ProcessBudgets
from relay.video_service.api.budget import Budget
from relay.video_service.api.client import Api
from relay.video_service.api.errors import ServiceApiError
from relay.video_service.api.exchange import ANSWER_MAX_BYTES, Exchange
from relay.video_service.api.records import Session, SessionPage, Submission, Video, Webhook
from tests.brokers.authority import Authority
from tests.conftest import ManualClock
from tests.stub_server import Reply, Request, Script, StubServer

KEY = "key_of_the_tests_0123456789"
EMAIL = "ada@example.com"

Connect = Callable[..., Api]

SESSION = {
    "id": "ses_01",
    "video": {"id": "vid_01", "title": "Product tour"},
    "viewer": {"email": EMAIL, "name": "Ada"},
    "startedAt": "2026-03-02T09:30:00.000Z",
    "endedAt": None,
    "watchedPercent": 40.0,
    "finished": False,
    "submitted": [
        {
            "id": "lead_01",
            "email": EMAIL,
            "name": "Ada",
            "fields": {"company": "Contoso"},
            "createdAt": "2026-03-02T09:30:20.000Z",
        }
    ],
}


@pytest.fixture
async def peer() -> AsyncIterator[StubServer]:
    async with StubServer() as peer:
        yield peer


@pytest.fixture
async def connect(peer: StubServer, clock: ManualClock) -> AsyncIterator[Connect]:
    """Creates clients whose waits take no time but advance the clock."""
    clients: list[Api] = []

    async def sleep(seconds: float) -> None:
        clock.ms += round(seconds * 1000)
        await asyncio.sleep(0)

    def connect(timeout_s: float = 10.0, **changes: Any) -> Api:
        values = {"base_url": peer.url(), "key": Secret(KEY), **changes}
        settings = ApiSettings(**values)
        budgets = ProcessBudgets(monotonic=clock.monotonic)
        budget = Budget(settings.key, budgets, monotonic=clock.monotonic, sleep=sleep)
        exchange = Exchange(settings, budget=budget, timeout_s=timeout_s, sleep=sleep)
        clients.append(Api(settings, exchange=exchange))
        return clients[-1]

    yield connect
    for client in clients:
        await client.aclose()


def said(*documents: object) -> Script:
    """Answer with these documents in turn, the last one for ever."""
    left = [Reply(body=orjson.dumps(document)) for document in documents]
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def replies(*script: Reply | bytes) -> Script:
    left = list(script)
    return lambda _: left.pop(0)


def listed(**items: Iterable[object]) -> dict[str, object]:
    return {name: list(values) for name, values in items.items()} | {"next": None}


async def pages(api: Api, *, after: str | None = None) -> list[SessionPage]:
    async with aclosing(api.sessions(after=after)) as found:
        return [page async for page in found]


async def all_videos(api: Api) -> list[Video]:
    return [video async for video in api.videos()]


async def failure(api: Api) -> ServiceApiError:
    with pytest.raises(ServiceApiError) as caught:
        await api.webhook("wh_01")
    return caught.value


async def test_sessions_are_read_page_by_page(peer: StubServer, connect: Connect) -> None:
    peer.reply = said(
        {"sessions": [SESSION], "next": "ses_01"}, {"sessions": [{"id": "ses_02"}], "next": None}
    )
    first, second = await pages(connect(), after="ses_00")
    assert first == SessionPage(
        sessions=(
            Session(
                id="ses_01",
                video_id="vid_01",
                title="Product tour",
                email=EMAIL,
                name="Ada",
                started_ms=1_772_443_800_000,
                percent=40.0,
                finished=False,
                submitted=(
                    Submission(
                        id="lead_01",
                        email=EMAIL,
                        name="Ada",
                        fields={"company": "Contoso"},
                        created_ms=1_772_443_820_000,
                    ),
                ),
            ),
        ),
        next="ses_01",
    )
    assert second == SessionPage(sessions=(Session(id="ses_02"),), next=None)
    assert [request.target for request in peer.requests] == [
        "/v1/analytics/sessions?after=ses_00",
        "/v1/analytics/sessions?after=ses_01",
    ]
    assert {request.header["authorization"] for request in peer.requests} == {f"Bearer {KEY}"}


async def test_watch_histories_are_requested_by_the_persons_address(
    peer: StubServer, connect: Connect
) -> None:
    item = {
        "video": {"id": "vid_01", "title": "Product tour"},
        "watchedPercent": 90,
        "finished": True,
        "lastWatchedAt": "2026-03-02T09:30:00Z",
    }
    peer.reply = said({"viewer": {"email": EMAIL}, "videos": [item, {"video": {}}, "no object"]})
    api = connect()
    (watched,) = await api.viewer("ada+tour@example.com")
    assert (watched.video_id, watched.percent, watched.finished) == ("vid_01", 90.0, True)
    assert watched.last_ms == 1_772_443_800_000
    assert api.skipped == 2
    query = urlsplit(peer.requests[0].target).query
    assert parse_qs(query) == {"email": ["ada+tour@example.com"]}


async def test_videos_of_all_pages_are_one_list(peer: StubServer, connect: Connect) -> None:
    video = {"id": "vid_01", "status": "ready", "version": 2, "durationSeconds": 61.5}
    peer.reply = said(
        {"videos": [video], "next": "vid_01"}, listed(videos=[{"id": "vid_02", "trashed": True}])
    )
    assert await all_videos(connect()) == [
        Video(id="vid_01", status="ready", version=2, duration_s=61.5),
        Video(id="vid_02", trashed=True),
    ]


async def test_an_endpoint_is_managed(peer: StubServer, connect: Connect) -> None:
    url = "https://hooks.example.com/webhooks"
    webhook = {"id": "wh/01", "url": url, "events": []}
    peer.reply = said({"webhook": webhook, "secret": "whsec_new", "eventId": "evt_1"})
    api = connect()
    registration = await api.register(url, ["lead.captured"])
    assert registration.webhook == Webhook(id="wh/01", url=url, events=())
    assert registration.secret == Secret("whsec_new")
    assert await api.webhook("wh/01") == registration.webhook
    assert await api.set_events("wh/01", []) == registration.webhook
    assert await api.rotate_secret("wh/01") == Secret("whsec_new")
    assert await api.send_test("wh/01") == "evt_1"
    await api.remove("wh/01")
    assert [(request.method, request.target, request.body) for request in peer.requests] == [
        (
            "POST",
            "/v1/webhooks",
            b'{"url":"https://hooks.example.com/webhooks","events":["lead.captured"]}',
        ),
        ("GET", "/v1/webhooks/wh%2F01", b""),
        ("PATCH", "/v1/webhooks/wh%2F01", b'{"events":[]}'),
        ("POST", "/v1/webhooks/wh%2F01/rotate-secret", b""),
        ("POST", "/v1/webhooks/wh%2F01/test", b""),
        ("DELETE", "/v1/webhooks/wh%2F01", b""),
    ]


async def test_answers_without_a_wrapper_or_a_body_are_understood(
    peer: StubServer, connect: Connect
) -> None:
    peer.reply = said({"id": "wh_01", "secret": "whsec_new"})
    api = connect()
    assert (await api.register("https://hooks.example.com", [])).webhook == Webhook(id="wh_01")
    peer.reply = lambda _: Reply(204)
    assert await api.set_events("wh_01", []) == Webhook(id="wh_01")
    assert await api.send_test("wh_01") is None


async def test_a_secret_counts_although_the_rest_of_the_answer_is_missing(
    peer: StubServer, connect: Connect
) -> None:
    peer.reply = said({"webhook": {"uid": 7, "secret": "whsec_new"}})
    registration = await connect().register("https://hooks.example.com", [])
    assert (registration.webhook, registration.secret) == (None, Secret("whsec_new"))


async def test_an_endpoint_without_an_id_is_none_of_a_list_and_no_answer_of_its_own(
    peer: StubServer, connect: Connect
) -> None:
    nameless = {"url": "https://hooks.example.com"}
    peer.reply = said(listed(webhooks=[nameless, {"id": "wh_01"}]), {"webhook": nameless})
    api = connect()
    assert await api.webhooks() == (Webhook(id="wh_01"),)
    error = await failure(api)
    assert (error.reason, error.uncertain) == ("broken answer", True)


@pytest.mark.parametrize("secret", [None, 7, " "])
async def test_a_registration_without_a_secret_may_have_been_carried_out(
    peer: StubServer, connect: Connect, secret: object
) -> None:
    peer.reply = said({"webhook": {"id": "wh_01"}, "secret": secret})
    with pytest.raises(ServiceApiError, match="broken answer") as caught:
        await connect().register("https://hooks.example.com", [])
    assert caught.value.uncertain


async def test_attempts_are_listed(peer: StubServer, connect: Connect) -> None:
    peer.reply = said(
        {"deliveries": [{"id": "att_1", "event": "lead.captured", "status": 202, "attempt": 1}]}
    )
    (attempt,) = await connect().deliveries("wh_01")
    assert (attempt.event, attempt.status, attempt.number) == ("lead.captured", 202, 1)
    assert attempt.state is None


async def test_unknown_fields_are_ignored_and_wrong_types_are_unknown(
    peer: StubServer, connect: Connect
) -> None:
    lies = {
        "id": "vid_01",
        "title": 7,
        "status": ["ready"],
        "version": "2",
        "durationSeconds": True,
        "width": 1.5,
        "trashed": "yes",
        "createdAt": "yesterday",
        "updatedAt": 1_772_443_800,
        "surprise": {"of": "any kind"},
    }
    peer.reply = said(listed(videos=[lies, {"title": "no id"}, {"id": ""}, {"id": 5}, None]))
    api = connect()
    assert await all_videos(api) == [Video(id="vid_01")]
    assert api.skipped == 4


async def test_fields_can_have_other_names(peer: StubServer, connect: Connect) -> None:
    peer.reply = said({"data": [{"uid": "vid_01"}], "cursor": None})
    api = connect(fields={"videos": "data", "video.id": "uid", "next": "cursor"})
    assert await all_videos(api) == [Video(id="vid_01")]


async def test_half_a_character_in_a_text_affects_nothing_else(
    peer: StubServer, connect: Connect
) -> None:
    peer.reply = lambda _: Reply(body=b'{"videos": [{"id": "vid_01", "title": "a\\ud83d"}]}')
    assert await all_videos(connect()) == [Video(id="vid_01", title="a\ufffd")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b'{"videos": {}}',
        b"\xff",
        b"[" * 100_000,
        b'{"a": NaN}',
    ],
    ids=["empty", "html", "list", "null", "no list", "object", "bytes", "deep", "nan"],
)
async def test_an_answer_of_another_kind_is_not_an_empty_list(
    peer: StubServer, connect: Connect, body: bytes
) -> None:
    peer.reply = lambda _: Reply(body=body)
    with pytest.raises(ServiceApiError) as caught:
        await all_videos(connect())
    assert caught.value.reason == "broken answer"


async def test_a_list_that_leads_back_to_its_beginning_ends(
    peer: StubServer, connect: Connect
) -> None:
    peer.reply = said(*({"sessions": [], "next": place} for place in ("a", "b", "a")))
    with pytest.raises(ServiceApiError) as caught:
        await pages(connect())
    assert caught.value.reason == "broken answer"
    assert len(peer.requests) == 3


@pytest.mark.parametrize(
    ("status", "reason", "tries"),
    [
        (401, "key refused", 1),
        (403, "no access", 1),
        (404, "not found", 1),
        (409, "request refused", 1),
        (422, "request refused", 1),
        (302, "redirect refused", 1),
        (500, "service failed", 3),
        (503, "service failed", 3),
    ],
)
async def test_a_status_has_a_reason_and_only_passing_ones_are_tried_again(
    peer: StubServer, connect: Connect, status: int, reason: str, tries: int
) -> None:
    peer.reply = lambda _: Reply(status, headers={"location": peer.url("/elsewhere")})
    error = await failure(connect())
    assert (error.reason, error.status) == (reason, status)
    assert len(peer.requests) == tries


async def test_a_read_survives_two_failures(peer: StubServer, connect: Connect) -> None:
    good = Reply(body=b'{"webhook": {"id": "wh_01"}}')
    peer.reply = replies(Reply(500), b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{", good)
    assert await connect().webhook("wh_01") == Webhook(id="wh_01")


@pytest.mark.parametrize("reply", [Reply(500), b"", Reply(200, b"<html>")])
async def test_a_change_is_sent_once_and_may_have_been_carried_out(
    peer: StubServer, connect: Connect, reply: Reply | bytes
) -> None:
    peer.reply = lambda _: reply
    with pytest.raises(ServiceApiError) as caught:
        await connect().rotate_secret("wh_01")
    assert caught.value.uncertain
    assert len(peer.requests) == 1


async def test_a_refused_change_was_not_carried_out(peer: StubServer, connect: Connect) -> None:
    peer.reply = lambda _: Reply(403)
    with pytest.raises(ServiceApiError) as caught:
        await connect().rotate_secret("wh_01")
    assert not caught.value.uncertain


@pytest.mark.parametrize("as_date", [False, True])
async def test_a_limit_is_obeyed_as_long_as_it_says(
    peer: StubServer, connect: Connect, clock: ManualClock, *, as_date: bool
) -> None:
    good = Reply(body=b'{"secret": "whsec_new"}')
    asked = formatdate(time.time() + 7.9, usegmt=True) if as_date else "7"
    peer.reply = replies(Reply(429, headers={"retry-after": asked}), good)
    begun_ms = clock.ms
    assert await connect().rotate_secret("wh_01") == Secret("whsec_new")
    assert 5000 <= clock.ms - begun_ms < 8000


@pytest.mark.parametrize("headers", [{}, {"retry-after": "soon"}, {"retry-after": "-5"}])
async def test_a_limit_without_a_time_is_waited_for_longer_each_time(
    peer: StubServer, connect: Connect, clock: ManualClock, headers: dict[str, str]
) -> None:
    peer.reply = lambda _: Reply(429, headers=headers)
    begun_ms = clock.ms
    error = await failure(connect())
    assert (error.reason, error.status) == ("rate limited", 429)
    assert len(peer.requests) == 6
    assert 60_000 <= clock.ms - begun_ms < 120_000


async def test_a_wait_beyond_the_deadline_is_reported_at_once(
    peer: StubServer, connect: Connect, clock: ManualClock
) -> None:
    peer.reply = lambda _: Reply(429, headers={"retry-after": "999999999"})
    begun_ms = clock.ms
    api = connect()
    assert (await failure(api)).reason == "rate limited"
    assert (await failure(api)).reason == "rate limited"
    assert clock.ms == begun_ms
    assert len(peer.requests) == 1


async def test_a_service_that_is_down_is_reported(peer: StubServer, connect: Connect) -> None:
    await peer.stop()
    error = await failure(connect())
    assert (error.reason, error.uncertain) == ("cannot connect", False)


async def test_a_service_that_never_answers_is_given_up(peer: StubServer, connect: Connect) -> None:
    peer.reply = lambda _: None
    assert (await failure(connect(timeout_s=0.1))).reason == "no answer"
    assert len(peer.requests) == 3


async def test_a_service_that_hangs_up_is_told_from_a_silent_one(
    peer: StubServer, connect: Connect
) -> None:
    peer.reply = lambda _: b""
    assert (await failure(connect())).reason == "connection closed"
    assert len(peer.requests) == 3


async def test_an_unknown_authority_is_a_failure_of_tls(tmp_path: Path, connect: Connect) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(Authority(tmp_path / "authority").issue("server"))
    async with StubServer(tls=context) as peer:
        assert (await failure(connect(base_url=peer.url()))).reason == "TLS failed"


@pytest.mark.parametrize("length", [str(ANSWER_MAX_BYTES + 1), None], ids=["named", "unnamed"])
async def test_an_answer_is_read_up_to_a_bound(
    peer: StubServer, connect: Connect, length: str | None
) -> None:
    head = f"content-length: {length}\r\n" if length else ""
    body = b"x" * (ANSWER_MAX_BYTES + 1)
    peer.reply = lambda _: f"HTTP/1.1 200 OK\r\n{head}\r\n".encode() + body
    assert (await failure(connect())).reason == "answer too large"


async def test_a_compressed_answer_is_not_unpacked(peer: StubServer, connect: Connect) -> None:
    peer.reply = lambda _: Reply(body=b"bomb", headers={"content-encoding": "gzip"})
    assert (await failure(connect())).reason == "broken answer"
    assert {request.header["accept-encoding"] for request in peer.requests} == {"identity"}


async def test_errors_and_logs_name_neither_key_nor_person_nor_address(
    peer: StubServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    api = connect(timeout_s=0.1)
    texts = []

    def hostile(request: Request) -> Reply:
        return Reply(418, f"{request.target} {KEY}".encode())

    for reply in (hostile, lambda _: None):
        peer.reply = reply
        with pytest.raises(ServiceApiError) as caught:
            await api.viewer(EMAIL)
        error = caught.value
        assert error.__context__ is None
        texts += [str(error), repr(error), *map(str, error.args)]
    for text in (*texts, caplog.text):
        for hidden in (KEY, EMAIL, "ada%40", str(peer.port), "viewer"):
            assert hidden not in text
