"""The `http` sink: each event is one signed request, by default a POST of the received bytes.

outgoing-http.md, sections 1, 2 and 7.
"""

import asyncio
import base64
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import httpx

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
from relay.sinks.http.own_headers import Headers
from relay.sinks.http.request import EventRequest, RequestSettings, RequestTemplate
from relay.sinks.http.target import fixed_part

OF_OPTIONS = frozenset({400, 405, 406, 411, 415, 422, 501})
"""What a receiver that takes POST may well answer to OPTIONS; it says nothing about events."""

OF_SAMPLES = frozenset({404, 410})
"""The same of a URL that was filled in with a sample, for there is no such object."""


class Settings(RequestSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type http."""

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
        return (*super().warnings(), *answers.warnings(self.success), *of_tokens)


class HttpSink:
    """Sends to one URL, or to one server."""

    def __init__(
        self,
        client: http_client.HttpClient | AuthorizedClient,
        clock: Clock,
        *,
        settings: Settings,
        url: httpx.URL,
        endpoint: http_client.HttpEndpoint,
        rules: answers.AnswerRules,
        request: RequestTemplate,
    ) -> None:
        self._client = client
        self._clock = clock
        self._endpoint = endpoint
        self._rules = rules
        self._has_token = settings.oauth2 is not None
        self._request = request
        self._checked = request.for_check(settings, endpoint)
        self._format = settings.format
        self._keys = _keys(settings.signing_secrets)
        own = [*_authorization(url), *request.headers.fixed]
        names = {name.lower() for name, _ in own} | request.headers.names
        self._masked = names | {"webhook-signature"}
        self._fixed = [*_defaults(endpoint, request, names), *own]

    async def send(self, event: Event) -> SinkResponse:
        request = await self._request.of(event, self._endpoint)
        response = await self._client.exchange(
            request.endpoint,
            method=self._request.method,
            headers=self._headers(event, request),
            body=request.body,
        )
        now_ms = self._clock.now_ms()
        if self._rules.takes_long(response):
            return await asyncio.to_thread(self._rules.outcome, response, now_ms=now_ms)
        return self._rules.outcome(response, now_ms=now_ms)

    async def check(self) -> str:
        # OPTIONS is the one method that changes nothing anywhere; a POST could be taken for an
        # event.
        async with self._client.apart() as client:
            response = await client.exchange(self._checked, method="OPTIONS", headers=self._fixed)
        says_nothing = OF_OPTIONS if self._request.has_fixed_url else OF_OPTIONS | OF_SAMPLES
        if response.status in says_nothing:
            return f"{response.status} to OPTIONS, which does not say whether events are taken"
        now_ms = self._clock.now_ms()
        self._rules.raise_for_check(response, method="OPTIONS", now_ms=now_ms)
        return f"{response.status} to OPTIONS"

    def render(self, event: Event) -> dict[str, Any]:
        request = self._request.fill(event, self._endpoint)
        headers = {
            name: "***" if name.lower() in self._masked else value
            for name, value in self._headers(event, request)
        }
        if self._has_token:
            headers["authorization"] = "***"
        return {
            "method": self._request.method,
            "url": self._request.shown_url(event, self._endpoint),
            "headers": headers,
            "body": request.body.decode(errors="replace"),
        }

    async def close(self) -> None:
        await self._client.close()

    def _headers(self, event: Event, request: EventRequest) -> Headers:
        id_ = cloudevents.header_value(event.id)
        now_s = self._clock.now_ms() // 1000
        return [
            *self._fixed,
            ("content-length", str(len(request.body))),
            *request.headers,
            *standard_webhooks.headers(self._keys, id_=id_, now_s=now_s, body=request.body),
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
        fixed = fixed_part(settings.url)
        url = sink_url.parse(fixed, schemes=("http", "https"), kind=httpx.URL)
        with faults.collect():
            _check_authorization(settings, url)
        sink_url.uses_tls(url.scheme, settings, secure="https")
    with faults.collect():
        request = RequestTemplate(settings)
        request.try_samples(settings)
    with faults.collect():
        if settings.format == "cloudevents" and not (settings.body is settings.form is None):
            raise ValueError("format: cloudevents goes with the received bytes only")
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
        fixed.reveal(), secrets=_secret_texts(settings, url, request.headers.fixed)
    )
    return HttpSink(
        _authorized(client, settings, clock),
        clock,
        settings=settings,
        url=url,
        endpoint=endpoint,
        request=request,
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


def _defaults(
    endpoint: http_client.HttpEndpoint, request: RequestTemplate, own: Collection[str]
) -> Headers:
    defaults = {
        "host": endpoint.authority,
        "content-type": request.content_type,
        "user-agent": http_client.USER_AGENT,
        "accept": "*/*",
        "accept-encoding": "identity",
    }
    return [(name, value) for name, value in defaults.items() if name not in own]


def _secret_texts(settings: Settings, url: httpx.URL, own: Headers) -> Iterable[str]:
    yield settings.url.reveal()
    for secret in settings.signing_secrets:
        yield secret.reveal()
    for _, value in (*own, *_authorization(url)):
        yield from (value, *value.split())
