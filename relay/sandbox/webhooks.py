"""Webhook endpoints, and the attempts to deliver events to them (section 6)."""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import httpx
import orjson

from relay.core import signature
from relay.core.delivery_rules import TIMEOUT_S, WAITS_S
from relay.core.errors import SinkError
from relay.core.event import KINDS, WEBHOOK_TEST, rfc3339
from relay.outbound.http import client as http_client
from relay.sandbox.errors import Refusal, unknown
from relay.sandbox.model import Attempt, Endpoint, Notification, Workspace
from relay.sandbox.schedule import Schedule

ATTEMPTS_KEPT = 50
"""Attempts that are listed, per endpoint."""

CONNECTIONS = 64
USER_AGENT = "Service-Webhooks/1"
SIGNATURE_HEADER = "Service-Signature"
_SECRET_BYTES = 32


Watch = Callable[[Attempt, bytes], None]
"""Called with each attempt once it has ended, and with the body that was sent."""


def _unwatched(_attempt: Attempt, _body: bytes) -> None:
    pass


class Publisher(Protocol):
    """Sends an event to every endpoint that is subscribed to it."""

    def publish(self, kind: str, data: dict[str, Any]) -> str:
        """Return the id of the event."""
        ...


class Webhooks:
    """The endpoints, and an outbox of the events that they have not taken yet."""

    def __init__(
        self,
        workspace: Workspace,
        schedule: Schedule,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`timeout_s` is real time: `--speed` does not shorten it."""
        self.watch: Watch = _unwatched
        self._workspace = workspace
        self._schedule = schedule
        self._timeout_s = timeout_s
        # Never reached: each attempt has a timeout of its own.
        self._client = http_client.HttpClient(timeout_s=2 * timeout_s, connections=CONNECTIONS)

    def resume(self) -> None:
        """Go on with the outbox of a workspace that was read from a file."""
        for attempt in self._workspace.attempts:
            if attempt.state == "pending":
                attempt.state, attempt.response = "failed", "the sandbox was stopped meanwhile"
        for notification in self._workspace.outbox:
            self._plan(notification)

    async def close(self) -> None:
        await self._client.close()

    def create(self, url: str, events: Iterable[str]) -> Endpoint:
        """Add an endpoint; raises Refusal for a URL or an event that cannot be used."""
        endpoint = Endpoint(
            id=self._workspace.new_id("wh"),
            url=valid_url(url, field="url"),
            events=_valid_events(events),
            secret=_new_secret(),
            created_ms=self._schedule.now_ms(),
        )
        self._workspace.endpoints[endpoint.id] = endpoint
        return endpoint

    def get(self, endpoint_id: str) -> Endpoint:
        endpoint = self._workspace.endpoints.get(endpoint_id)
        if endpoint is None:
            raise unknown("webhook")
        return endpoint

    def set_events(self, endpoint_id: str, events: Iterable[str]) -> Endpoint:
        endpoint = self.get(endpoint_id)
        endpoint.events = _valid_events(events)
        return endpoint

    def rotate_secret(self, endpoint_id: str) -> Endpoint:
        """Give the endpoint a new secret; each later attempt is signed with it."""
        endpoint = self.get(endpoint_id)
        endpoint.secret = _new_secret()
        return endpoint

    def remove(self, endpoint_id: str) -> None:
        """Remove the endpoint with its attempts, and what it has not taken."""
        del self._workspace.endpoints[self.get(endpoint_id).id]
        workspace = self._workspace
        workspace.outbox = [each for each in workspace.outbox if each.endpoint != endpoint_id]
        workspace.attempts = [each for each in workspace.attempts if each.endpoint != endpoint_id]

    def attempts(self, endpoint_id: str) -> list[Attempt]:
        """Return the last attempts for an endpoint, the newest first."""
        self.get(endpoint_id)
        return [each for each in reversed(self._workspace.attempts) if each.endpoint == endpoint_id]

    def publish(self, kind: str, data: dict[str, Any]) -> str:
        endpoints = self._workspace.endpoints.values()
        return self._send(
            [each for each in endpoints if not each.events or kind in each.events], kind, data
        )

    def send_test(self, endpoint_id: str) -> str:
        """Send `webhook.test` to one endpoint, whatever its events; returns the event's id."""
        return self._send([self.get(endpoint_id)], WEBHOOK_TEST, {})

    def _send(self, endpoints: Iterable[Endpoint], kind: str, data: dict[str, Any]) -> str:
        # Random, because a relay that has seen a former workspace would take it for a duplicate.
        event_id = f"evt_{secrets.token_hex(8)}"
        created_at = rfc3339(self._schedule.now_ms())
        body = orjson.dumps({"id": event_id, "event": kind, "createdAt": created_at, "data": data})
        for endpoint in endpoints:
            notification = Notification(
                endpoint=endpoint.id,
                event_id=event_id,
                event=kind,
                body=body,
                next_number=1,
                due_ms=self._schedule.time_ms(),
            )
            self._workspace.outbox.append(notification)
            self._plan(notification)
        return event_id

    def _plan(self, notification: Notification) -> None:
        self._schedule.at(notification.due_ms, lambda: self._begin(notification))

    def _begin(self, notification: Notification) -> None:
        endpoint = self._workspace.endpoints.get(notification.endpoint)
        if endpoint is None or not self._is_waiting(notification):
            return
        attempt = Attempt(
            id=self._workspace.new_id("att"),
            endpoint=endpoint.id,
            event_id=notification.event_id,
            event=notification.event,
            number=notification.next_number,
            state="pending",
            started_ms=self._schedule.now_ms(),
        )
        self._record(attempt)
        self._schedule.begin(self._deliver(endpoint, notification, attempt))

    async def _deliver(
        self, endpoint: Endpoint, notification: Notification, attempt: Attempt
    ) -> None:
        started_s = self._schedule.clock.monotonic()
        await self._post(endpoint, notification.body, attempt)
        attempt.duration_ms = round((self._schedule.clock.monotonic() - started_s) * 1000)
        self.watch(attempt, notification.body)
        if not self._is_waiting(notification):
            return
        if attempt.state == "delivered" or attempt.number > len(WAITS_S):
            outbox = self._workspace.outbox
            self._workspace.outbox = [each for each in outbox if each is not notification]
            return
        notification.due_ms = self._schedule.due_ms(WAITS_S[attempt.number - 1])
        notification.next_number += 1
        self._plan(notification)

    async def _post(self, endpoint: Endpoint, body: bytes, attempt: Attempt) -> None:
        """Post the body once, signed now; any 2xx is final, and redirects are not followed."""
        attempt.state = "pending"
        now_s = self._schedule.now_ms() // 1000
        headers = [
            ("User-Agent", USER_AGENT),
            ("Content-Type", "application/json"),
            (SIGNATURE_HEADER, signature.header(endpoint.secret.encode(), now_s=now_s, body=body)),
        ]
        target = http_client.HttpEndpoint.of(endpoint.url, secrets=(endpoint.secret,))
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.exchange(target, headers=headers, body=body)
        except TimeoutError:
            attempt.state, attempt.response = "failed", f"no answer within {self._timeout_s:g} s"
        except SinkError as error:
            attempt.state, attempt.response = "failed", error.reason
        else:
            attempt.status, attempt.response = response.status, response.excerpt
            attempt.state = "delivered" if 200 <= response.status < 300 else "failed"

    def _is_waiting(self, notification: Notification) -> bool:
        return any(each is notification for each in self._workspace.outbox)

    def _record(self, attempt: Attempt) -> None:
        """Keep the attempt, and the last ones before it."""
        attempts = self._workspace.attempts
        attempts.append(attempt)
        of_endpoint = [each for each in attempts if each.endpoint == attempt.endpoint]
        if len(of_endpoint) > ATTEMPTS_KEPT:
            oldest = of_endpoint[0]
            self._workspace.attempts = [each for each in attempts if each is not oldest]


def valid_url(url: str, *, field: str) -> str:
    """Return an http or https URL with a host; raises Refusal."""
    try:
        parsed = httpx.URL(url)
        http_client.HttpEndpoint.of(parsed)
    except (httpx.InvalidURL, ValueError):
        parsed = httpx.URL("")
    # httpx takes any host, and escapes its strange characters.
    if parsed.scheme not in {"http", "https"} or not parsed.host or "%" in parsed.host:
        raise Refusal(422, f"{field}: expected an http or https URL with a host.")
    return url


def _new_secret() -> str:
    return f"whs_{secrets.token_urlsafe(_SECRET_BYTES)}"


def _valid_events(events: Iterable[str]) -> list[str]:
    events = list(dict.fromkeys(events))
    for event in events:
        if event not in KINDS:
            raise Refusal(422, f"events: expected some of {', '.join(KINDS)}")
    return events
