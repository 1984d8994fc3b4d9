"""OAuth 2.0's client credentials grant (RFC 6749, section 4.4), and requests with its tokens."""

import asyncio
import base64
import math
import re
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlencode

import httpx
import msgspec

from relay.core import timeouts
from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.hosts import parse_host
from relay.core.proxies import Proxies
from relay.core.setting_errors import Faults
from relay.outbound import sink_url
from relay.outbound.http import client as http_client
from relay.outbound.http import responses, tokens
from relay.outbound.http.responses import HttpResponse

CODES: Mapping[str, str] = {
    "invalid_client": "the client is unknown, or its secret is wrong",
    "unauthorized_client": "the client may not ask for this",
    "invalid_scope": "the client may not have these scopes, or there is none of this name",
    "unsupported_grant_type": "the server does not know the client credentials grant",
    "invalid_grant": "the client may not use the client credentials grant",
    "access_denied": "the client may not ask for this",
    "invalid_request": "a parameter is missing, unknown or given twice",
}
"""Meanings of OAuth's error codes (RFC 6749, section 5.2)."""

_AFTER_LOGIN = frozenset(CODES) - {"invalid_client", "invalid_request"}
"""Codes of a server that knows who asks."""

_FAILED = "no token from the token endpoint"

_SHARE = 0.9
"""Share of a sink's `timeout` for a token: its end comes before that of the sends that wait for it,
whose error would blame the destination."""

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_OURS = frozenset({"grant_type", "scope", "client_id", "client_secret"})


class OAuth2Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[sink.oauth2]`."""

    token_url: Secret
    client_id: Secret
    client_secret: Secret
    scopes: tuple[str, ...] = ()
    endpoint_params: dict[str, Secret] = msgspec.field(default_factory=dict)
    """Further parameters of the request for a token, such as `audience`; masked as secrets are."""

    def check(self) -> None:
        """Raise ValueErrors as `Faults` does, each with the key at fault before it."""
        faults = Faults()
        with faults.collect():
            url = sink_url.parse(
                self.token_url, schemes=("https", "http"), kind=httpx.URL, key="oauth2.token_url"
            )
            if url.userinfo:
                raise ValueError("oauth2.token_url: expected client_id and client_secret beside it")
            self.endpoint()
        for index, scope in enumerate(self.scopes):
            with faults.collect():
                if _SCOPE.fullmatch(scope) is None:
                    raise ValueError(f"oauth2.scopes[{index}]: expected one scope, without blanks")
        for name in self.endpoint_params:
            with faults.collect():
                if name in _OURS:
                    raise ValueError(f"oauth2.endpoint_params.{name}: is set by the relay itself")
        faults.raise_all()

    def warnings(self) -> Iterator[str]:
        """Yield what is valid but probably unintended; each text starts with its key."""
        url = httpx.URL(self.token_url.reveal())
        host = parse_host(url.netloc.decode())
        if url.scheme == "http" and not (host is not None and host.is_loopback):
            yield "oauth2.token_url: is not https: secret and token can be read on their way"

    def endpoint(self) -> http_client.HttpEndpoint:
        """Return where tokens are asked for; raises ValueError for a host that cannot be one."""
        hidden = [self.client_id, self.client_secret, *self.endpoint_params.values()]
        try:
            return http_client.HttpEndpoint.of(
                self.token_url.reveal(), secrets=_spellings(secret.reveal() for secret in hidden)
            )
        except ValueError as error:  # its text begins with `url: `
            raise ValueError(f"oauth2.token_{error}") from None


@dataclass(frozen=True, slots=True)
class _Request:
    """A request for a token, in one of the two ways in which a client shows who it is."""

    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)


class ClientCredentials(tokens.AccessTokens):
    """Tokens of one client, from one endpoint."""

    def __init__(
        self,
        settings: OAuth2Settings,
        clock: Clock,
        *,
        timeout_s: float,
        verify: ssl.SSLContext | None,
        proxies: Proxies | None = None,
    ) -> None:
        super().__init__(clock)
        self._timeout_s = timeout_s * _SHARE
        self._endpoint = settings.endpoint()
        self._client = http_client.HttpClient(
            timeout_s=timeout_s,
            connections=1,
            verify=verify,
            peer="token endpoint",
            proxies=proxies,
        )
        self._requests = _requests(settings, self._endpoint)
        """The one that a server has understood comes first: some take one way only."""
        self._pending: asyncio.Future[tokens.Token] | None = None

    async def close(self) -> None:
        await super().close()
        await self._client.close()

    def _cancel(self) -> None:
        if self._pending is not None:
            self._pending.cancel()

    def _classify(self, error: Exception) -> SinkError:
        match error:
            case Misconfigured():
                return Misconfigured(f"{_FAILED}: {error.reason}")
            case Temporary():
                wait_ms = error.retry_after_ms
                return Temporary(f"{_FAILED}: {error.reason}", retry_after_ms=wait_ms)
        return Temporary(f"{_FAILED}: an answer without a meaning ({type(error).__name__})")

    async def _request(self) -> tokens.Token:
        # A task of its own, so that a close ends it without a cancellation for those who wait.
        self._pending = asyncio.ensure_future(self._answered())
        await asyncio.wait({self._pending})
        if self._pending.cancelled():
            raise Temporary("the sink is closed")
        return self._pending.result()

    async def _answered(self) -> tokens.Token:
        limit = timeouts.RequestTimeout(self._timeout_s)
        try:
            async with limit:
                return self._token_of(await self._ask())
        except TimeoutError:
            raise Temporary(limit.reason()) from None

    async def _ask(self) -> HttpResponse:
        """Return a 2xx."""
        failures: dict[str, SinkError] = {}
        for request in self._requests:
            response = await self._client.exchange(
                self._endpoint, headers=request.headers, body=request.body
            )
            if 200 <= response.status < 300:
                # Another list, because this one is walked.
                self._requests = sorted(self._requests, key=lambda each: each is not request)
                return response
            code = _code(response)
            failures[code] = _failure(response, code, now_ms=self._clock.now_ms())
            if response.status not in (400, 401) or code in _AFTER_LOGIN:
                break
        # A server that knows one way only says of the other that something is missing.
        raise failures.get("invalid_client", failures[code])

    def _token_of(self, response: HttpResponse) -> tokens.Token:
        document = responses.document(response)
        value = document.get("access_token")
        if isinstance(value, str) and value.strip():
            token = tokens.Token.lasting(
                {"authorization": f"Bearer {value}"},
                now_s=self._clock.monotonic(),
                left_s=_left_s(document.get("expires_in")),
            )
            if token.is_sendable:
                return token
        raise _failure(response, _code(response), now_ms=self._clock.now_ms())


class AuthorizedClient:
    """Exchanges as `HttpClient` does, with a token in each request."""

    def __init__(
        self, client: http_client.HttpClient, new_tokens: Callable[[], tokens.AccessTokens]
    ) -> None:
        self._client = client
        self._new_tokens = new_tokens
        self._tokens = new_tokens()

    async def exchange(
        self,
        endpoint: http_client.HttpEndpoint,
        *,
        method: str = "POST",
        headers: Collection[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> HttpResponse:
        """Send a request; one that is answered 401 is sent once more, with a new token."""

        async def send(carried: Mapping[str, str]) -> HttpResponse:
            timeouts.restart()  # the wait for a token is no part of the request's time
            masked = endpoint.hiding(*(value.partition(" ")[2] for value in carried.values()))
            own = (*headers, *carried.items())
            return await self._client.exchange(masked, method=method, headers=own, body=body)

        carried = await self._tokens.headers()
        response = await send(carried)
        if response.status != 401:
            return response
        self._tokens.forget(carried)
        return await send(await self._tokens.headers())

    @asynccontextmanager
    async def apart(self) -> AsyncIterator["AuthorizedClient"]:
        """Lend a client with connections and a token of its own, which end with it."""
        async with self._client.apart() as client:
            lent = AuthorizedClient(client, self._new_tokens)
            try:
                yield lent
            finally:
                await lent.close()

    async def close(self) -> None:
        """Close every connection; may be called twice."""
        await self._tokens.close()
        await self._client.close()


def _requests(settings: OAuth2Settings, endpoint: http_client.HttpEndpoint) -> list[_Request]:
    """Write the two requests: RFC 6749, section 2.3.1, has every server take the first one."""
    client = {"client_id": settings.client_id, "client_secret": settings.client_secret}
    login = {name: secret.reveal() for name, secret in client.items()}
    asked = {"grant_type": "client_credentials"}
    if settings.scopes:
        asked["scope"] = " ".join(settings.scopes)
    asked |= {name: secret.reveal() for name, secret in settings.endpoint_params.items()}
    basic = ("authorization", f"Basic {_basic(*login.values())}")
    return [_written(endpoint, asked, basic), _written(endpoint, asked | login)]


def _written(
    endpoint: http_client.HttpEndpoint, form: Mapping[str, str], *own: tuple[str, str]
) -> _Request:
    body = urlencode(form).encode()
    headers = (
        ("host", endpoint.authority),
        ("content-type", "application/x-www-form-urlencoded"),
        ("content-length", str(len(body))),
        ("user-agent", http_client.USER_AGENT),
        ("accept", "application/json"),
        ("accept-encoding", "identity"),
    )
    return _Request((*headers, *own), body)


def _basic(client_id: str, client_secret: str) -> str:
    # Encoded twice, as the RFC wants it.
    pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
    return base64.b64encode(pair.encode()).decode()


def _spellings(secrets: Iterable[str]) -> Iterator[str]:
    """Yield secrets as they are, and as they stand in a form."""
    for secret in secrets:
        yield from (secret, quote_plus(secret))


def _failure(response: HttpResponse, code: str, *, now_ms: int) -> SinkError:
    """Explain an answer without a token; of its words only OAuth's own code is repeated."""
    said = f"{response.status} {code}".rstrip()
    meaning = responses.meaning(response.status)
    if meaning is not None and meaning[0] is Temporary:
        wait_ms = responses.retry_after_ms(response.headers, now_ms=now_ms)
        return Temporary(said, retry_after_ms=wait_ms)
    if code:
        return Misconfigured(f"{said}: {CODES.get(code, 'it gives the client none')}")
    return Misconfigured(f"{said}, and no word why: check oauth2.token_url")


def _code(response: HttpResponse) -> str:
    code = responses.document(response).get("error")
    return code if isinstance(code, str) and re.fullmatch("[a-z_]{1,40}", code) else ""


def _left_s(expires_in: object) -> float:
    """Return a token's life; without one it lasts until it is rejected."""
    if isinstance(expires_in, int | float | str):
        try:
            left_s = float(expires_in)
        except ValueError:  # some servers write the number as a text, others a date
            return math.inf
        if left_s > 0:
            return left_s
    return math.inf
