"""OAuth2 tokens: how they are asked for, shared and renewed, and how their endpoint fails."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote_plus

import msgspec
import pytest

from relay.core import config_values, timeouts
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.timeouts import Deadlines
from relay.outbound.http.client import HttpClient, HttpEndpoint
from relay.outbound.http.oauth2 import AuthorizedClient, ClientCredentials, OAuth2Settings
from relay.outbound.http.responses import HttpResponse
from relay.outbound.http.tokens import REFRESH_EARLY_S, RETRY_S
from tests.conftest import ManualClock
from tests.outbound.http.token_endpoint import TokenEndpoint, issuing, said
from tests.sinks.test_conformance import told
from tests.stub_server import Reply, Request, StubServer, until

SECRETS = ("marked", quote_plus("marked+secret/1:of%20the client"))
FROM = "no token from the token endpoint: "


def read(**table: object) -> OAuth2Settings:
    return msgspec.convert(table, OAuth2Settings, dec_hook=config_values.decode)


@pytest.fixture
async def endpoint() -> AsyncIterator[TokenEndpoint]:
    async with issuing() as endpoint:
        yield endpoint


Tokens = Callable[..., ClientCredentials]


@pytest.fixture
async def tokens(endpoint: TokenEndpoint, clock: ManualClock) -> AsyncIterator[Tokens]:
    made: list[ClientCredentials] = []

    def make(timeout_s: float = 5, **more: object) -> ClientCredentials:
        settings = read(**endpoint.table(**more))
        made.append(ClientCredentials(settings, clock, timeout_s=timeout_s, verify=None))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def bearer(tokens: ClientCredentials) -> str:
    return (await tokens.headers())["authorization"].removeprefix("Bearer ")


async def failure(tokens: ClientCredentials) -> SinkError:
    with pytest.raises(SinkError) as caught:
        await tokens.headers()
    return caught.value


async def renewed(tokens: ClientCredentials) -> None:
    await until(lambda: tokens._fetching is None, what="the end of the renewal")


async def test_the_request_is_that_of_the_client_credentials_grant(
    endpoint: TokenEndpoint, tokens: Tokens
) -> None:
    own = {"audience": "https://api.example/?a=b&c", "resource": "x y"}
    token = await bearer(tokens(scopes=["leads.write", "leads.read"], endpoint_params=own))
    (request,) = endpoint.server.requests
    assert token == endpoint.issued[0]
    assert (request.method, request.target) == ("POST", "/token?tenant=marked-tenant")
    assert request.header["content-type"] == "application/x-www-form-urlencoded"
    assert request.header["accept"] == "application/json"
    assert len(request.header) == len(request.headers)
    form = {"grant_type": "client_credentials", "scope": "leads.write leads.read", **own}
    assert endpoint.form() == form
    pair = f"{quote_plus(endpoint.client_id)}:{quote_plus(endpoint.secret)}"
    assert request.header["authorization"] == f"Basic {base64.b64encode(pair.encode()).decode()}"


async def test_a_server_that_reads_the_client_from_the_body_alone_is_asked_so_from_then_on(
    endpoint: TokenEndpoint, tokens: Tokens
) -> None:
    endpoint.ways = ("body",)
    client = tokens()
    for asked in (2, 3):
        carried = await client.headers()
        assert endpoint.asked == asked
        client.forget(carried)
    assert "authorization" not in endpoint.server.requests[-1].header
    assert endpoint.form()["client_secret"] == endpoint.secret


async def test_all_who_wait_share_one_token(endpoint: TokenEndpoint, tokens: Tokens) -> None:
    client = tokens()
    found = await asyncio.gather(*(bearer(client) for _ in range(50)))
    assert set(found) == set(endpoint.issued)
    assert endpoint.asked == 1


async def test_a_token_is_renewed_shortly_before_its_end_while_the_old_one_serves(
    endpoint: TokenEndpoint, tokens: Tokens, clock: ManualClock
) -> None:
    client = tokens()
    first = await bearer(client)
    clock.ms += int(3600 - REFRESH_EARLY_S - 5) * 1000
    assert await bearer(client) == first
    assert endpoint.asked == 1
    clock.ms += 10_000
    assert await bearer(client) == first
    await renewed(client)
    assert await bearer(client) == endpoint.issued[1]
    assert endpoint.asked == 2


async def test_a_renewal_that_fails_spends_the_old_token_first(
    endpoint: TokenEndpoint, tokens: Tokens, clock: ManualClock
) -> None:
    client = tokens()
    first = await bearer(client)
    endpoint.server.reply = lambda _: Reply(503)
    clock.ms += int(3600 - REFRESH_EARLY_S + 1) * 1000
    for _ in range(3):
        assert await bearer(client) == first
        await renewed(client)
    assert endpoint.asked == 2
    clock.ms += int(RETRY_S + REFRESH_EARLY_S) * 1000
    assert type(await failure(client)) is Temporary


@pytest.mark.parametrize("lasts", [None, 0, -1, "", "soon", "nan", {}, 1e300])
async def test_a_token_without_a_usable_end_is_kept(
    endpoint: TokenEndpoint, tokens: Tokens, clock: ManualClock, lasts: object
) -> None:
    endpoint.lasts = lasts
    client = tokens()
    await client.headers()
    clock.ms += 10 * 86_400_000
    await client.headers()
    assert endpoint.asked == 1


async def test_an_end_that_is_written_as_a_text_counts(
    endpoint: TokenEndpoint, tokens: Tokens, clock: ManualClock
) -> None:
    endpoint.lasts = "3600"
    client = tokens()
    await client.headers()
    clock.ms += 3_601_000
    assert await bearer(client) == endpoint.issued[1]


CASES: list[tuple[Callable[[Request], Reply], type[SinkError], str]] = [
    (
        lambda r: said({"error": "invalid_client", "error_description": str(r)}, 401),
        Misconfigured,
        "401 invalid_client: the client is unknown, or its secret is wrong",
    ),
    (
        lambda r: said({"error": "invalid_scope"}, 400),
        Misconfigured,
        "400 invalid_scope: the client may not have these scopes, or there is none of this name",
    ),
    (
        lambda r: said({"error": "expired_contract"}, 403),
        Misconfigured,
        "403 expired_contract: it gives the client none",
    ),
    (
        lambda r: said({"error": str(r)}, 400),
        Misconfigured,
        "400, and no word why: check oauth2.token_url",
    ),
    (
        lambda r: Reply(404, str(r).encode()),
        Misconfigured,
        "404, and no word why: check oauth2.token_url",
    ),
    (
        lambda r: Reply(302, b"", {"location": "/marked"}),
        Misconfigured,
        "302, and no word why: check oauth2.token_url",
    ),
    (
        lambda r: Reply(200, str(r).encode()),
        Misconfigured,
        "200, and no word why: check oauth2.token_url",
    ),
    (
        lambda r: said({"access_token": "marked\r\nx: y"}),
        Misconfigured,
        "200, and no word why: check oauth2.token_url",
    ),
    (
        lambda r: said({"access_token": None, "error": "invalid_grant"}),
        Misconfigured,
        "200 invalid_grant: the client may not use the client credentials grant",
    ),
    (lambda r: Reply(500, str(r).encode()), Temporary, "500"),
    (lambda r: said({"error": "temporarily_unavailable"}, 503), Temporary, "503 temp"),
    (lambda r: Reply(429, str(r).encode(), {"retry-after": "7"}), Temporary, "429"),
]


@pytest.mark.parametrize(("reply", "kind", "reason"), CASES)
async def test_a_failure_has_its_class_and_a_reason_without_secrets(
    endpoint: TokenEndpoint,
    tokens: Tokens,
    reply: Callable[[Request], Reply],
    kind: type[SinkError],
    reason: str,
) -> None:
    endpoint.server.reply = reply
    error = await failure(tokens())
    assert type(error) is kind
    assert error.reason.startswith(FROM + reason)
    assert error.unsent
    assert error.status is None
    assert not error.about_event
    assert not [text for text in told(error) for secret in SECRETS if secret in text]
    if "429" in reason:
        assert isinstance(error, Temporary)
        assert error.retry_after_ms == 7_000


@pytest.mark.parametrize("ways", [("basic",), ("body",), ("basic", "body")])
async def test_a_wrong_secret_is_named_as_such_whatever_the_server_says_of_the_other_way(
    endpoint: TokenEndpoint, tokens: Tokens, ways: tuple[str, ...]
) -> None:
    endpoint.ways = ways

    def reply(request: Request) -> Reply:
        is_basic = "authorization" in request.header
        if ("basic" if is_basic else "body") in ways:
            return said({"error": "invalid_client"}, 401)
        return said({"error": "invalid_request"}, 400)

    endpoint.server.reply = reply
    error = await failure(tokens())
    assert "401 invalid_client" in error.reason
    assert endpoint.asked == 2


async def test_an_endpoint_that_is_away_is_temporary_and_passes(
    endpoint: TokenEndpoint, tokens: Tokens
) -> None:
    await endpoint.server.stop()
    client = tokens()
    error = await failure(client)
    assert (type(error), error.reason) == (Temporary, FROM + "connection refused")
    await endpoint.server.listen()
    await client.headers()


async def test_a_silent_endpoint_is_named_before_the_attempts_own_limit_ends(
    endpoint: TokenEndpoint, tokens: Tokens, clock: ManualClock
) -> None:
    endpoint.server.reply = lambda _: None
    client = tokens(timeout_s=0.3)

    async def send() -> SinkError:
        limit = timeouts.RequestTimeout(0.3)
        async with limit:
            return await failure(client)

    for error in await asyncio.gather(*(send() for _ in range(5))):
        assert (type(error), error.reason) == (Temporary, FROM + "no answer within 0.27 s")
    assert endpoint.asked == 1


async def test_a_close_ends_what_waits(endpoint: TokenEndpoint, tokens: Tokens) -> None:
    endpoint.server.reply = lambda _: None
    client = tokens(timeout_s=30)
    waiting = asyncio.create_task(failure(client))
    await until(lambda: endpoint.asked == 1, what="the request for a token")
    async with asyncio.timeout(1):
        await client.close()
        assert (await waiting).reason == FROM + "the sink is closed"
    await until(lambda: endpoint.server.open == 0, what="the end of the connection")


async def test_a_cancelled_send_leaves_the_request_to_the_others(
    endpoint: TokenEndpoint, tokens: Tokens
) -> None:
    client = tokens()
    first, second = (asyncio.create_task(bearer(client)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == endpoint.issued[0]
    assert endpoint.asked == 1


async def test_a_token_does_not_print(tokens: Tokens) -> None:
    client = tokens()
    await client.headers()
    assert "marked" not in f"{client._token!r} {vars(client)!r}"


@pytest.fixture
async def api(endpoint: TokenEndpoint) -> AsyncIterator[StubServer]:
    async with StubServer() as api:
        api.reply = endpoint.call
        yield api


@pytest.fixture
async def client(tokens: Tokens) -> AsyncIterator[AuthorizedClient]:
    client = AuthorizedClient(HttpClient(timeout_s=5, connections=16), tokens)
    yield client
    await client.close()


async def post(client: AuthorizedClient, api: StubServer) -> HttpResponse:
    url = HttpEndpoint.of(api.url())
    return await client.exchange(url, headers=[("content-length", "1")], body=b"x")


async def test_each_request_carries_the_token_and_no_answer_repeats_it(
    endpoint: TokenEndpoint, api: StubServer, client: AuthorizedClient
) -> None:
    for _ in range(2):
        response = await post(client, api)
        assert response.status == 200
        assert "Bearer ***" in response.excerpt
        assert "marked" not in response.excerpt
    assert endpoint.asked == 1


async def test_many_that_see_one_401_have_one_new_token_and_none_fails(
    endpoint: TokenEndpoint, api: StubServer, client: AuthorizedClient
) -> None:
    await post(client, api)
    endpoint.valid.clear()
    found = await asyncio.gather(*(post(client, api) for _ in range(100)))
    assert {each.status for each in found} == {200}
    assert endpoint.asked == 2


async def test_a_401_that_comes_late_does_not_drop_the_newer_token(
    endpoint: TokenEndpoint, api: StubServer, tokens: Tokens
) -> None:
    held = tokens()
    old = await held.headers()
    held.forget(old)
    new = await held.headers()
    held.forget(old)
    assert await held.headers() is new
    assert endpoint.asked == 2


async def test_a_401_to_a_new_token_is_the_destinations_answer(
    endpoint: TokenEndpoint, api: StubServer, client: AuthorizedClient
) -> None:
    api.reply = lambda _: Reply(401)
    for asked in (2, 3):
        assert (await post(client, api)).status == 401
        assert endpoint.asked == asked
        assert len(api.requests) == 2 * (asked - 1)


async def test_a_renewal_that_fails_after_a_401_is_the_token_endpoints_failure(
    endpoint: TokenEndpoint, api: StubServer, client: AuthorizedClient
) -> None:
    await post(client, api)
    endpoint.valid.clear()
    endpoint.server.reply = lambda _: Reply(500)
    results: list[Any] = await asyncio.gather(
        *(post(client, api) for _ in range(20)), return_exceptions=True
    )
    assert {(type(each), each.reason) for each in results} == {(Temporary, FROM + "500")}
    # Those whose answer came after the failure have asked again.
    assert 2 <= endpoint.asked < 20


async def test_the_wait_for_a_token_is_no_part_of_the_requests_time(
    endpoint: TokenEndpoint, api: StubServer, client: AuthorizedClient, clock: ManualClock
) -> None:
    deadline = Deadlines(clock).within(60)
    clock.ms += 50_000
    with deadline:
        timeouts.current_timeout.set(deadline)
        await post(client, api)
        assert deadline.at_s == clock.monotonic() + 60


async def test_a_client_apart_has_a_token_of_its_own(
    endpoint: TokenEndpoint, api: StubServer, client: AuthorizedClient
) -> None:
    await post(client, api)
    async with client.apart() as apart:
        endpoint.valid.clear()
        assert (await post(apart, api)).status == 200
    assert endpoint.asked == 2
    await until(lambda: api.open == 1, what="the end of its connections")


FAULTS: list[tuple[dict[str, object], str]] = [
    ({"token_url": "ftp://idp.example/"}, "oauth2.token_url: expected https:// or http://"),
    ({"token_url": "idp.example/marked"}, "oauth2.token_url: expected https:// or http://"),
    ({"token_url": "https://1.2.3.4.5/marked"}, "oauth2.token_url: the host is neither"),
    ({"token_url": "https://a:marked@idp.example/"}, "oauth2.token_url: expected client_id"),
    ({"scopes": ["a", "b c"]}, r"oauth2.scopes\[1\]: expected one scope"),
    ({"endpoint_params": {"scope": "marked"}}, "oauth2.endpoint_params.scope: is set by"),
]


@pytest.mark.parametrize(("changed", "fault"), FAULTS)
def test_a_setting_that_cannot_be_right_is_refused_by_its_key(
    changed: dict[str, object], fault: str
) -> None:
    table = {"token_url": "https://idp.example/", "client_id": "a", "client_secret": "marked"}
    with pytest.raises(ValueError, match=fault) as caught:
        read(**(table | changed)).check()
    assert "marked" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "is_warned_of"),
    [
        ("https://idp.example/token", False),
        ("http://idp.example/token", True),
        ("http://localhost:8080/token", False),
        ("http://127.0.0.1/token", False),
        ("http://[::1]:80/token", False),
    ],
)
def test_a_token_url_that_can_be_read_on_its_way_is_warned_of(url: str, is_warned_of: bool) -> None:
    settings = read(token_url=url, client_id="a", client_secret="b")
    assert bool(list(settings.warnings())) is is_warned_of
