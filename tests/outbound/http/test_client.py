"""The HTTP client: statuses, Retry-After, bounds on a response, and secrets that may not show."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.outbound.http import responses
from relay.outbound.http.client import EXCERPT_BYTES, READ_BYTES, HttpClient, HttpEndpoint
from relay.outbound.http.responses import HttpResponse
from tests.conftest import NOW_MS
from tests.stub_server import Reply, StubServer, until

PARKING = {401, 402, 403, 404, 405, 407, 410, 421, 426}
PASSING = {408, 425, 429}

CONNECTIONS = 4


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    client = HttpClient(timeout_s=0.4, connections=CONNECTIONS)
    yield client
    await client.close()


async def post(client: HttpClient, url: str) -> HttpResponse:
    return await client.exchange(HttpEndpoint.of(url))


def outcome_of(status: int) -> type[SinkError] | None:
    try:
        responses.raise_for_status(HttpResponse(status, {}, "said", complete=True), now_ms=NOW_MS)
    except SinkError as error:
        return type(error)
    return None


@pytest.mark.parametrize("status", range(200, 300))
def test_only_2xx_is_success(status: int) -> None:
    assert outcome_of(status) is None


@pytest.mark.parametrize("status", range(300, 600))
def test_every_other_status_has_its_class(status: int) -> None:
    expected: type[SinkError] = {3: Misconfigured, 4: Refused, 5: Temporary}[status // 100]
    if status in PARKING:
        expected = Misconfigured
    if status in PASSING:
        expected = Temporary
    assert outcome_of(status) is expected
    assert responses.MEANINGS[status][0] is expected


@pytest.mark.parametrize("status", [302, 400, 401, 500])
def test_an_error_carries_the_status_and_the_answer(status: int) -> None:
    response = HttpResponse(status, {}, "said", complete=True)
    with pytest.raises(SinkError, match=str(status)) as caught:
        responses.raise_for_status(response, now_ms=NOW_MS)
    assert (caught.value.status, caught.value.answer) == (status, "said")


@pytest.mark.parametrize("status", [101, 199, 600, 999])
def test_a_status_that_http_does_not_have_loses_no_event(status: int) -> None:
    assert outcome_of(status) is Temporary


def asked(value: str) -> int | None:
    return responses.retry_after_ms({"retry-after": value}, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0),
        ("7", 7_000),
        (" 120 ", 120_000),
        ("-1", None),
        ("1.5", 1_500),
        ("0.0001", 1),
        ("1.", None),
        (".5", None),
        ("1.5.0", None),
        ("", None),
        ("soon", None),
        ("5, 7", None),
        ("9" * 400, None),
        ("Mon, 02 Mar 2026 09:31:30 GMT", 90_000),
        ("Monday, 02-Mar-26 09:31:30 GMT", 90_000),
        ("Mon Mar  2 09:31:30 2026", 90_000),
        ("Mon, 02 Mar 2026 10:31:30 +0100", 90_000),
        ("Mon, 02 Mar 2026 09:29:00 GMT", 0),
        ("Mon, 32 Mar 2026 09:29:00 GMT", None),
        ("Mon, 02 Mar 99999 09:29:00 GMT", None),
        ("Mon, 02 Mar 2026 09:31:30 +99999999999999", None),
        ("Mon, 01 Jan 0001 00:00:00 +9999", None),
        ("Mon, 02 Mar 2026 09:31:30 (", 90_000),
    ],
)
def test_retry_after_is_seconds_or_a_date_of_any_form(value: str, expected: int | None) -> None:
    assert asked(value) == expected


def test_no_retry_after_asks_for_nothing() -> None:
    assert responses.retry_after_ms({}, now_ms=NOW_MS) is None


@given(st.text(st.characters(max_codepoint=255)))
def test_no_retry_after_breaks_the_reader(value: str) -> None:
    waited = asked(value)
    assert waited is None or waited >= 0


@given(
    st.integers(1, 10**9),
    st.integers(-12, 12),
)
def test_a_date_means_the_same_in_every_zone(wait_s: int, hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    due = datetime.fromtimestamp(NOW_MS // 1000 + wait_s, zone)
    assert asked(format_datetime(due)) == wait_s * 1000


async def test_a_connection_is_free_again_whenever_an_exchange_is_cancelled(
    destination: StubServer,
) -> None:
    client = HttpClient(timeout_s=5, connections=1)
    for _ in range(20):
        destination.reply = lambda _: None
        # The limit is due while the loop is busy, so that bytes and the cancellation come at once.
        asyncio.get_running_loop().call_later(0.05, time.sleep, 0.02)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.052):
                await post(client, destination.url())
        destination.reply = lambda _: Reply()
        response = await post(client, destination.url())
        assert response.status == 200
    await client.close()


async def test_an_aborted_exchange_leaves_no_connection_open(
    destination: StubServer, client: HttpClient
) -> None:
    destination.reply = lambda _: None
    sending = asyncio.create_task(post(client, destination.url()))
    await until(lambda: len(destination.requests) == 1, what="the request")
    sending.cancel()
    await until(lambda: destination.open == 0, what="the end of its connection")


async def test_a_body_is_there_to_be_understood_but_is_not_shown(
    destination: StubServer, client: HttpClient
) -> None:
    destination.reply = lambda _: Reply(200, b"[" + b"1," * EXCERPT_BYTES + b"1]")
    response = await post(client, destination.url())
    assert response.body == b"[" + b"1," * EXCERPT_BYTES + b"1]"
    assert "body" not in repr(response)


async def test_a_short_answer_is_complete(destination: StubServer, client: HttpClient) -> None:
    destination.reply = lambda _: Reply(200, "gut \N{SMILE}\r\n".encode())
    response = await post(client, destination.url())
    assert (response.excerpt, response.complete) == ("gut \N{SMILE}\r\n", True)


@pytest.mark.parametrize("size", [EXCERPT_BYTES + 1, READ_BYTES * 40])
async def test_a_kilobyte_of_a_long_answer_is_kept(
    destination: StubServer, client: HttpClient, size: int
) -> None:
    destination.reply = lambda _: Reply(500, b"\xc3\xbc" * (size // 2 + 1))
    response = await post(client, destination.url())
    assert response.excerpt == "\N{LATIN SMALL LETTER U WITH DIAERESIS}" * (EXCERPT_BYTES // 2)
    assert not response.complete


async def test_an_endless_response_is_cut_off(destination: StubServer, client: HttpClient) -> None:
    destination.reply = lambda _: Reply(200, b"x" * READ_BYTES * 40)
    await post(client, destination.url())
    await until(lambda: destination.open == 0, what="the end of the connection")


async def test_a_read_answer_leaves_its_connection_for_the_next(
    destination: StubServer, client: HttpClient
) -> None:
    for _ in range(3):
        await post(client, destination.url())
    assert destination.accepted == 1


async def test_an_answer_cannot_steer_a_terminal(
    destination: StubServer, client: HttpClient
) -> None:
    destination.reply = lambda _: Reply(200, b"\x1b[2J\x00\x9b\xff\tok\n")
    response = await post(client, destination.url())
    assert response.excerpt == "\ufffd[2J\ufffd\ufffd\ufffd\tok\n"


@pytest.mark.parametrize(
    "echoed",
    [
        "/hook/a%20marked-path?key=marked-query",
        "no route a marked-path",
        "bad key marked-query",
        "x" * (EXCERPT_BYTES - 8) + "marked-query",
        "\\/hook\\/a%20marked-path",
        "marked-extra",
    ],
)
async def test_an_answer_that_repeats_a_secret_is_masked(
    destination: StubServer, client: HttpClient, echoed: str
) -> None:
    destination.reply = lambda _: Reply(404, echoed.encode())
    url = destination.url("/hook/a%20marked-path?key=marked-query")
    response = await client.exchange(HttpEndpoint.of(url, secrets=("marked-extra",)))
    assert "marked" not in response.excerpt
    assert "*" in response.excerpt


@pytest.mark.parametrize(
    "target",
    [
        "/a/../b/./c",
        "/..",
        "//two//slashes/../x",
        "/%2e%2E/x?y=/../z",
        "/a%zz b/{x}",
        "/sp%20ace?q=a b#fragment",
        "?only=a-query",
        "",
    ],
)
async def test_a_url_is_sent_as_it_is_written(
    destination: StubServer, client: HttpClient, target: str
) -> None:
    await post(client, destination.url(target))
    expected = target.partition("#")[0].replace(" ", "%20")
    expected = expected.replace("{x}", "%7Bx%7D")
    (request,) = destination.requests
    assert request.target == (expected if expected.startswith("/") else f"/{expected}")


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "2130706433", "127.0.0.1"])
async def test_an_ipv4_address_may_have_any_of_its_forms(
    destination: StubServer, client: HttpClient, host: str
) -> None:
    url = destination.url(host=host)
    assert (await post(client, url)).status == 200
    assert destination.requests[0].header["host"] == f"127.0.0.1:{destination.port}"
    assert HttpEndpoint.of(url).authority == f"127.0.0.1:{destination.port}"


@pytest.mark.parametrize("host", ["1.2.3.4.5", "99999999999", "example.0x", "a.256"])
def test_a_host_that_ends_in_a_number_and_is_no_address_is_no_url(host: str) -> None:
    with pytest.raises(ValueError, match=r"^url: the host is neither a name nor an IPv4 address$"):
        HttpEndpoint.of(f"https://{host}/marked")


def test_a_folded_segment_is_a_secret_too() -> None:
    assert "marked-segment" in HttpEndpoint.of("http://h/hook/marked-segment/../x").secrets


async def test_a_redirect_is_not_followed(destination: StubServer, client: HttpClient) -> None:
    destination.reply = lambda _: Reply(307, headers={"location": "/elsewhere"})
    response = await post(client, destination.url())
    assert response.status == 307
    assert len(destination.requests) == 1


@pytest.mark.parametrize("location", ["http://[", "http://exa mple/", "//", "http://\xff.example"])
async def test_a_redirect_to_nonsense_is_an_outcome(
    destination: StubServer, client: HttpClient, location: str
) -> None:
    destination.reply = lambda _: Reply(302, headers={"location": location})
    with suppress(SinkError):
        response = await post(client, destination.url())
        assert response.status == 302
    assert len(destination.requests) == 1


async def test_cookies_are_not_kept(destination: StubServer, client: HttpClient) -> None:
    destination.reply = lambda _: Reply(200, headers={"set-cookie": "a=b"})
    await post(client, destination.url())
    await post(client, destination.url())
    assert "cookie" not in destination.requests[1].header


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"", "the connection ended without an answer"),
        (b"SMTP ready\r\n\r\n", "what answers there does not speak HTTP"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",
            "the connection ended in the body of the answer, after 3 of 9 bytes",
        ),
    ],
    ids=["closed", "other protocol", "cut"],
)
async def test_a_broken_exchange_has_a_fixed_text(
    destination: StubServer, client: HttpClient, reply: bytes, reason: str
) -> None:
    destination.reply = lambda _: reply
    with pytest.raises(Temporary) as caught:
        await post(client, destination.url("/marked"))
    assert caught.value.reason == reason
    assert caught.value.__context__ is None


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_refused_connection_and_an_unknown_name_are_told_apart(
    destination: StubServer, client: HttpClient, scheme: str
) -> None:
    await destination.stop()
    urls = (f"{scheme}://127.0.0.1:{destination.port}/", f"{scheme}://no-such-name.invalid/")
    reasons = []
    for url in urls:
        with pytest.raises(Temporary) as caught:
            await post(client, url)
        reasons.append(caught.value.reason)
    assert reasons == ["connection refused", "name not found"]


async def test_nothing_is_logged(
    destination: StubServer, client: HttpClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await post(client, destination.url("/marked"))
    assert "marked" not in caplog.text


async def test_a_proxy_in_the_environment_is_not_used(
    destination: StubServer, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert (await post(client, destination.url())).status == 200


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        None,
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",
        Reply(200, b"x" * READ_BYTES * 4),
    ],
    ids=["closed", "silence", "cut", "endless"],
)
async def test_an_exchange_that_ended_badly_leaves_all_connections_for_the_next(
    destination: StubServer, client: HttpClient, reply: Reply | bytes | None
) -> None:
    def send(target: str) -> asyncio.Task[HttpResponse]:
        return asyncio.create_task(post(client, destination.url(target)))

    destination.reply = lambda request: reply if request.target == "/bad" else None
    with suppress(Temporary, TimeoutError):
        async with asyncio.timeout(0.4):
            await post(client, destination.url("/bad"))
    destination.requests.clear()
    tasks = [send("/held") for _ in range(CONNECTIONS)]
    await until(lambda: len(destination.requests) == CONNECTIONS, what="all requests at once")
    await cancel(tasks)


async def cancel(tasks: list[asyncio.Task[HttpResponse]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
