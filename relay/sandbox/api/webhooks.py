"""Webhook endpoints: those documented, and those behind the settings screen (section 4)."""

from typing import Annotated

from msgspec import Meta

from relay.core.event import KINDS
from relay.sandbox.analytics.records import Record
from relay.sandbox.api.operation import Body, Call, Id, Operation, Parameters, Url
from relay.sandbox.model import AttemptState, Endpoint

Kind = Annotated[str, Meta(extra_json_schema={"enum": KINDS})]


class NewWebhook(Body):
    """An endpoint; an empty list of events means all of them."""

    url: Url
    events: list[Kind]


class Events(Body):
    """The events of an endpoint; none means all of them."""

    events: list[Kind]


class WebhookRecord(Record):
    """A webhook endpoint, without its secret."""

    id: str
    url: str
    events: list[str]
    created_at: str


class WebhookAnswer(Record):
    """One endpoint."""

    webhook: WebhookRecord


class WebhookWithSecret(Record):
    """An endpoint with its signing secret, which is shown this once."""

    webhook: WebhookRecord
    secret: str


class WebhookList(Record):
    """All endpoints, the oldest first."""

    webhooks: list[WebhookRecord]


class SentTest(Record):
    """The id of the `webhook.test` that is sent now."""

    event_id: str


class Delivery(Record):
    """One attempt to deliver an event, with the beginning of its response."""

    id: str
    event_id: str
    event: str
    attempt: int
    state: AttemptState
    status: int | None
    response: str
    started_at: str
    duration_ms: int | None


class Deliveries(Record):
    """The last 50 attempts, the newest first."""

    deliveries: list[Delivery]


def create_webhook(call: Call, _: Parameters, body: NewWebhook) -> WebhookWithSecret:
    """Add an endpoint; its secret is shown this once."""
    return _with_secret(call.services.webhooks.create(body.url, body.events))


def list_webhooks(call: Call, _: Parameters) -> WebhookList:
    """List the endpoints."""
    endpoints = call.services.workspace.endpoints.values()
    return WebhookList(webhooks=[WebhookRecord.copy_of(endpoint) for endpoint in endpoints])


def read_webhook(call: Call, webhook: Id) -> WebhookAnswer:
    """Read one endpoint."""
    return WebhookAnswer(webhook=WebhookRecord.copy_of(call.services.webhooks.get(webhook.id)))


def set_events(call: Call, webhook: Id, body: Events) -> WebhookAnswer:
    """Change the events of an endpoint."""
    endpoint = call.services.webhooks.set_events(webhook.id, body.events)
    return WebhookAnswer(webhook=WebhookRecord.copy_of(endpoint))


def rotate_secret(call: Call, webhook: Id) -> WebhookWithSecret:
    """Replace the secret of an endpoint; the one before stops working at once."""
    return _with_secret(call.services.webhooks.rotate_secret(webhook.id))


def remove_webhook(call: Call, webhook: Id) -> None:
    """Remove an endpoint."""
    call.services.webhooks.remove(webhook.id)


def send_test(call: Call, webhook: Id) -> SentTest:
    """Send `webhook.test` to an endpoint, whatever its events."""
    return SentTest(event_id=call.services.webhooks.send_test(webhook.id))


def list_deliveries(call: Call, webhook: Id) -> Deliveries:
    """List the last attempts for an endpoint."""
    attempts = call.services.webhooks.attempts(webhook.id)
    return Deliveries(deliveries=[Delivery.copy_of(each, attempt=each.number) for each in attempts])


def _with_secret(endpoint: Endpoint) -> WebhookWithSecret:
    return WebhookWithSecret(webhook=WebhookRecord.copy_of(endpoint), secret=endpoint.secret)


OPERATIONS = tuple(
    Operation(method, f"/v1/webhooks{path}", handler, access="Admin", status=status)
    for method, path, handler, status in (
        ("POST", "", create_webhook, 201),
        ("GET", "", list_webhooks, 200),
        ("GET", "/{id}", read_webhook, 200),
        ("PATCH", "/{id}", set_events, 200),
        ("DELETE", "/{id}", remove_webhook, 204),
        ("POST", "/{id}/rotate-secret", rotate_secret, 200),
        ("POST", "/{id}/test", send_test, 202),
        ("GET", "/{id}/deliveries", list_deliveries, 200),
    )
)
