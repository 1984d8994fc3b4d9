"""The `slack` sink: each event is one message in the channel of an incoming webhook.

slack.md, sections 1 to 3.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import httpx
import orjson
from msgspec.structs import replace

from relay.core.clock import Clock
from relay.core.config_values import Duration, Rate, Secret
from relay.core.delivery import SinkResponse
from relay.core.errors import InvalidTemplate, Refused, Temporary
from relay.core.event import Event
from relay.core.large_bodies import BodyWorker
from relay.core.proxies import Proxies
from relay.core.setting_errors import Faults
from relay.core.sink import ProxiedSettings
from relay.core.sink_status import WaitReason
from relay.core.timeouts import RequestTimeout
from relay.outbound import sink_url
from relay.outbound.http import client as http_client
from relay.outbound.http.responses import HttpResponse
from relay.outbound.message import samples
from relay.sinks.slack.burst import Burst, DigestSettings
from relay.sinks.slack.digest import EVENTS_MAX, digest
from relay.sinks.slack.message import message, plain_message
from relay.sinks.slack.responses import is_temporary, other_service, raise_for_status
from relay.sinks.slack.template import OwnMessage

_HEADERS = (
    ("content-type", "application/json; charset=utf-8"),
    ("accept-encoding", "identity"),
    ("user-agent", http_client.USER_AGENT),
)


class Settings(ProxiedSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type slack."""

    url: Secret
    """The incoming webhook, a secret: no other credential is needed to post."""
    text: str | None = None
    """A template in Slack's mrkdwn, in place of the built-in message."""
    blocks: tuple[dict[str, Any], ...] | None = None
    """Block Kit tables in which every text is a template, in place of the built-in layout."""
    concurrency: int = 1
    rate: Rate | None = Rate.parse("1/s")
    """Slack's own limit for one hook (slack.md, section 3)."""
    digest: DigestSettings | None = None
    """Sums up bursts of events; digests ignore `text` and `blocks`."""

    def warnings(self) -> Sequence[str]:
        service = other_service(httpx.URL(self.url.reveal()).host)
        if service is None:
            return ()
        warning = (
            f"url: is an address of {service}, not of Slack: what it answers says nothing about a "
            "message in Slack's form; let a sink of type http send it the event"
        )
        return (warning,)

    @property
    def reason_of_sends(self) -> WaitReason:
        return "sends" if self.digest is None else "digest"

    def slots(self) -> int:
        return self.concurrency if self.digest is None else EVENTS_MAX

    def pace(self) -> Rate | None:
        return self.rate if self.digest is None else None

    def gathers_for_s(self) -> float:
        return 0.0 if self.digest is None else self.digest.every.seconds

    def send_timeout(self) -> Duration:
        # The sink enforces `timeout` itself, of each post; with each, this time begins anew.
        pause_ms = 0
        if self.digest is not None:
            pause_ms = max(self.digest.every, round(self.interval_s() * 1000))
        return Duration(self.timeout + pause_ms + 1000)

    def for_sample(self) -> Self:
        return replace(self, digest=None)

    def interval_s(self) -> float:
        """Return the minimum time between two messages."""
        return 0.0 if self.rate is None else 1 / self.rate


_worker = BodyWorker("slack")
"""One for all hooks."""

Words = Callable[[Event], dict[str, Any]]
"""Turns an event into a payload; raises InvalidTemplate if it cannot."""


class SlackSink:
    """Posts to one hook."""

    def __init__(
        self,
        client: http_client.HttpClient,
        clock: Clock,
        settings: Settings,
        *,
        url: str,
        words: Words,
    ) -> None:
        self._burst = None
        if settings.digest is not None:
            self._burst = Burst(
                settings.digest,
                single=self._send_one,
                digest=self._send_digest,
                interval_s=settings.interval_s(),
            )
        self._timeout_s = settings.timeout.seconds
        self._client = client
        self._clock = clock
        self._endpoint = http_client.HttpEndpoint.of(url)
        self._root = http_client.HttpEndpoint.of(httpx.URL(url).copy_with(raw_path=b"/"))
        self._other_service = other_service(httpx.URL(url).host)
        self._words = words
        # A workflow trigger: any POST starts the workflow.
        self._is_workflow = not {"workflows", "triggers"}.isdisjoint(httpx.URL(url).path.split("/"))

    async def send(self, event: Event) -> SinkResponse:
        return await (self._send_one(event) if self._burst is None else self._burst.send(event))

    async def _send_one(self, event: Event) -> SinkResponse:
        try:
            payload = await _worker.run(len(event.body), partial(self._words, event))
        except InvalidTemplate as error:
            raise Refused(f"the template fails on this event: {error}", unsent=True) from None
        try:
            return await self._post(payload)
        except Refused as error:
            if event.watch_history is not None:
                raise  # the dispatcher sends it again without
            refusal = error
        try:
            plainest = await _worker.run(len(event.body), partial(plain_message, event))
            answer = await self._post(plainest)
        except Refused as error:
            reason = f"{refusal.reason}; its plainest form fared no better: {error.reason}"
            raise Refused(reason, status=error.status, answer=error.answer) from None
        excerpt = f"{answer.excerpt} (in plainest form: {refusal.reason})"
        return SinkResponse(answer.status, excerpt)

    async def _send_digest(self, events: Sequence[Event]) -> SinkResponse:
        size = sum(len(event.body) for event in events)
        return await self._post(await _worker.run(size, partial(digest, events)))

    async def check(self) -> str:
        if self._is_workflow:
            async with self._client.apart() as client:
                response = await client.exchange(self._root, method="HEAD")
            if is_temporary(response):
                self._raise_for_status(response)
            return "the host answers; the workflow itself is not asked, for any POST would start it"
        # Nothing is posted without a text: a live hook says 400 to an empty message (no_text,
        # invalid_payload), a dead one 403 or 404 (slack.md, section 2).
        async with self._client.apart() as client:
            response = await self._exchange(client, {})
        try:
            self._raise_for_status(response)
        except Refused as error:
            refusal = error
        else:
            return "an empty message was taken"
        return f"{refusal.status} to an empty message, as a live webhook answers"

    def render(self, event: Event) -> dict[str, Any]:
        return self._words(event)

    async def close(self) -> None:
        if self._burst is not None:
            await self._burst.close()
        await self._client.close()

    async def _post(self, payload: dict[str, Any]) -> SinkResponse:
        response = await self._exchange(self._client, payload)
        self._raise_for_status(response)
        return SinkResponse(response.status, response.excerpt)

    async def _exchange(
        self, client: http_client.HttpClient, payload: dict[str, Any]
    ) -> HttpResponse:
        """Post once within the timeout: an event may need a second message, a burst many."""
        body = orjson.dumps(payload)
        limit = RequestTimeout(self._timeout_s)
        try:
            async with limit:
                return await client.exchange(self._endpoint, headers=_HEADERS, body=body)
        except TimeoutError:
            raise Temporary(limit.reason()) from None

    def _raise_for_status(self, response: HttpResponse) -> None:
        # A workflow's 2xx has an empty body, or one of its own.
        if not (self._is_workflow and _is_success(response.status)):
            now_ms = self._clock.now_ms()
            raise_for_status(response, service=self._other_service, now_ms=now_ms)


def _is_success(status: int | None) -> bool:
    return status is not None and 200 <= status < 300


def build(settings: Settings, clock: Clock) -> SlackSink:
    faults = Faults()
    with faults.collect():
        # The host is not checked: Slack has several, and a proxy may stand before it.
        sink_url.parse(settings.url, schemes=("http", "https"), kind=httpx.URL)
    with faults.collect():
        words = _words(settings)
    with faults.collect():
        _check_order(settings)
    faults.raise_all()
    client = http_client.HttpClient(
        timeout_s=settings.timeout.seconds,
        connections=settings.concurrency,
        proxies=Proxies.of(settings.outbound, settings.proxy_url),
    )
    return SlackSink(client, clock, settings, url=settings.url.reveal(), words=words)


def _check_order(settings: Settings) -> None:
    if settings.digest is not None and settings.ordered is not None:
        raise ValueError(
            f"ordered: does not go with digest, because of each {settings.ordered} only one event "
            "at a time would get into a summary: leave one of the two out"
        )


def _words(settings: Settings) -> Words:
    if settings.text is None and settings.blocks is None:
        return message
    words = OwnMessage(text=settings.text, blocks=settings.blocks).render
    for sample in samples(settings):
        try:
            words(sample)
        except InvalidTemplate as error:
            raise InvalidTemplate(f"{error} (tried with a sample of {sample.kind})") from None
    return words
