"""The `http` sink: each event is one signed POST of the received bytes.

outgoing-http.md, sections 1, 2 and 7.
"""

import asyncio
import base64
import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal

import httpx
import msgspec

from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.delivery import SinkResponse
from relay.core.event import Event, rfc3339
from relay.core.proxies import OutboundSettings, Proxies
from relay.core.setting_errors import Faults
from relay.outbound import cloudevents, sink_url, tls, watched
from relay.outbound.http import client as http_client
from relay.outbound.http.oauth2 import AuthorizedClient, ClientCredentials, OAuth2Settings
from relay.sinks.http import answers, standard_webhooks

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?")
_OURS = re.compile(
    r"(webhook|ce|relay)-.*|host|content-length|content-encoding|transfer-encoding|connection"
    r"|upgrade|te|trailer|expect|accept-encoding",
    re.IGNORECASE,
)

OF_OPTIONS = frozenset({400, 405, 406, 411, 415, 422, 501})
"""What a receiver that takes POST may well answer to OPTIONS; it says nothing about events."""

Headers = list[tuple[str, str]]


class Settings(tls.TlsSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type http."""

    url: Secret
    headers: dict[str, Secret] = msgspec.field(default_factory=dict)
    """Sent with every request, and masked wherever they would show."""
    signing_secrets: tuple[Secret, ...] = ()
    """Standard Webhooks; all of them sign, so that a consumer can change over without loss."""
    format: Literal["raw", "cloudevents"] = "raw"
    success: str | None = None
    """A JMESPath expression over the JSON body of a 2xx, which is true of a delivered event."""
    delivered_on: tuple[int, ...] = ()
    """Statuses that confirm an event, whatever they mean elsewhere; the other lists likewise."""
    retry_on: tuple[int, ...] = ()
    park_on: tuple[int, ...] = ()
    refuse_on: tuple[int, ...] = ()
    retry_after_header: str | None = None
    """Read beside Retry-After."""
    oauth2: OAuth2Settings | None = None
    """Tokens for the `authorization` header, by the client credentials grant."""
    # As in ProxiedSettings: of two bases with fields, Python takes only one.
    proxy_url: Secret | None = None
    outbound: OutboundSettings = OutboundSettings()
    concurrency: int = 16

    def warnings(self) -> Sequence[str]:
        of_tokens = () if self.oauth2 is None else self.oauth2.warnings()
        return (*answers.warnings(self.success), *of_tokens)


class HttpSink:
    """Posts to one URL."""

    def __init__(
        self,
        client: http_client.HttpClient | AuthorizedClient,
        clock: Clock,
        *,
        settings: Settings,
        url: httpx.URL,
        endpoint: http_client.HttpEndpoint,
        rules: answers.AnswerRules,
    ) -> None:
        self._client = client
        self._clock = clock
        self._endpoint = endpoint
        self._rules = rules
        self._has_token = settings.oauth2 is not None
        self._format = settings.format
        self._keys = _keys(settings.signing_secrets)
        self._own = [*_authorization(url), *_own_headers(settings.headers)]
        self._fixed = _fixed_headers(endpoint, self._own)

    async def send(self, event: Event) -> SinkResponse:
        response = await self._client.exchange(
            self._endpoint, headers=self._headers(event), body=event.body
        )
        now_ms = self._clock.now_ms()
        if self._rules.takes_long(response):
            return await asyncio.to_thread(self._rules.outcome, response, now_ms=now_ms)
        return self._rules.outcome(response, now_ms=now_ms)

    async def check(self) -> str:
        # OPTIONS is the one method that changes nothing anywhere; a POST could be taken for an
        # event.
        async with self._client.apart() as client:
            response = await client.exchange(self._endpoint, method="OPTIONS", headers=self._fixed)
        if response.status in OF_OPTIONS:
            return f"{response.status} to OPTIONS, which does not say whether events are taken"
        now_ms = self._clock.now_ms()
        self._rules.raise_for_check(response, method="OPTIONS", now_ms=now_ms)
        return f"{response.status} to OPTIONS"

    def render(self, event: Event) -> dict[str, Any]:
        masked = {name.lower() for name, _ in self._own} | {"webhook-signature"}
        headers = {
            name: "***" if name.lower() in masked else value for name, value in self._headers(event)
        }
        if self._has_token:
            headers["authorization"] = "***"
        return {"method": "POST", "headers": headers, "body": event.body.decode(errors="replace")}

    async def close(self) -> None:
        await self._client.close()

    def _headers(self, event: Event) -> Headers:
        id_ = cloudevents.header_value(event.id)
        now_s = self._clock.now_ms() // 1000
        return [
            *self._fixed,
            ("content-length", str(len(event.body))),
            *standard_webhooks.headers(self._keys, id_=id_, now_s=now_s, body=event.body),
            ("relay-event", cloudevents.header_value(event.kind)),
            ("relay-source", cloudevents.header_value(event.source)),
            ("relay-received-at", rfc3339(event.received_ms)),
            *((("relay-reconstructed", "true"),) if event.reconstructed else ()),
            *(cloudevents.headers(event) if self._format == "cloudevents" else ()),
            *self._watched(event),
        ]

    def _watched(self, event: Event) -> Headers:
        named = watched.headers(event, self._format, prefix="ce-").items()
        if self._format == "raw":  # JSON in ASCII is a header value as it is
            return list(named)
        return [(name, cloudevents.header_value(value)) for name, value in named]


def build(settings: Settings, clock: Clock) -> HttpSink:
    faults, verify = Faults(), None
    with faults.collect():
        url = sink_url.parse(settings.url, schemes=("http", "https"), kind=httpx.URL)
        with faults.collect():
            _check_authorization(settings, url)
        sink_url.uses_tls(url.scheme, settings, secure="https")
    with faults.collect():
        _own_headers(settings.headers)
    with faults.collect():
        _keys(settings.signing_secrets)
    with faults.collect():
        verify = tls.context(settings) if tls.is_asked_for(settings) else None
    with faults.collect():
        rules = answers.rules_of(settings)
    with faults.collect():
        if settings.oauth2 is not None:
            settings.oauth2.check()
    faults.raise_all()
    client = http_client.HttpClient(
        timeout_s=settings.timeout.seconds,
        connections=settings.concurrency,
        verify=verify,
        ends_connection=rules.ends_connection,
        proxies=Proxies.of(settings.outbound, settings.proxy_url),
    )
    endpoint = http_client.HttpEndpoint.of(
        settings.url.reveal(), secrets=_secret_texts(settings, url)
    )
    return HttpSink(
        _authorized(client, settings, clock),
        clock,
        settings=settings,
        url=url,
        endpoint=endpoint,
        rules=rules,
    )


def _authorized(
    client: http_client.HttpClient, settings: Settings, clock: Clock
) -> http_client.HttpClient | AuthorizedClient:
    if settings.oauth2 is None:
        return client
    new_tokens = partial(
        ClientCredentials,
        settings.oauth2,
        clock,
        timeout_s=settings.timeout.seconds,
        verify=tls.beside(settings),
        proxies=Proxies.of(settings.outbound, settings.proxy_url),
    )
    return AuthorizedClient(client, new_tokens)


def _keys(secrets: Iterable[Secret]) -> tuple[bytes, ...]:
    faults, keys = Faults(), []
    for index, secret in enumerate(secrets):
        with faults.collect():
            try:
                keys.append(standard_webhooks.key(secret.reveal()))
            except ValueError as error:
                raise ValueError(f"signing_secrets[{index}]: {error}") from None
    faults.raise_all()
    return tuple(keys)


def _own_headers(headers: dict[str, Secret]) -> Headers:
    faults, seen = Faults(), set[str]()
    for name, value in headers.items():
        with faults.collect():
            _check_header(name, value, seen)
        seen.add(name.lower())
    faults.raise_all()
    return [(name, value.reveal()) for name, value in headers.items()]


def _check_header(name: str, value: Secret, seen: set[str]) -> None:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"headers.{name}: HTTP does not allow this name")
    if _OURS.fullmatch(name):
        raise ValueError(f"headers.{name}: is set by the relay itself")
    if name.lower() in seen:
        raise ValueError(f"headers.{name}: duplicate header; names are case-insensitive")
    if _VALUE.fullmatch(value.reveal()) is None:
        raise ValueError(f"headers.{name}: expected printable ASCII, no blanks at its ends")


def _check_authorization(settings: Settings, url: httpx.URL) -> None:
    """Raise ValueError where two of the settings would each set the same header."""
    own = any(name.lower() == "authorization" for name in settings.headers)
    if url.userinfo and own:
        raise ValueError("headers.authorization: url carries credentials already")
    if settings.oauth2 is not None and (own or url.userinfo):
        raise ValueError(f"oauth2: {'headers' if own else 'url'} sets authorization already")


def _authorization(url: httpx.URL) -> Headers:
    if not url.userinfo:
        return []
    credentials = base64.b64encode(f"{url.username}:{url.password}".encode())
    return [("authorization", f"Basic {credentials.decode()}")]


def _fixed_headers(endpoint: http_client.HttpEndpoint, own: Headers) -> Headers:
    defaults = {
        "host": endpoint.authority,
        "content-type": "application/json",
        "user-agent": http_client.USER_AGENT,
        "accept": "*/*",
        "accept-encoding": "identity",
    }
    names = {name.lower() for name, _ in own}
    return [*((name, value) for name, value in defaults.items() if name not in names), *own]


def _secret_texts(settings: Settings, url: httpx.URL) -> Iterable[str]:
    yield settings.url.reveal()
    for secret in settings.signing_secrets:
        yield secret.reveal()
    for _, value in (*_own_headers(settings.headers), *_authorization(url)):
        yield from (value, *value.split())
