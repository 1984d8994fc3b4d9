"""What a queue sink puts beside the body: the event's own words as headers or attributes (pure)."""

from typing import Literal

from relay import cloudevents
from relay.event import Event

Format = Literal["raw", "cloudevents"]
"""Both leave the body byte for byte as received; `cloudevents` adds the binding's headers."""


def headers(event: Event, form: Format, *, prefix: str) -> dict[str, str]:
    """Name what a consumer needs to route and to drop duplicates; values are any text.

    `prefix` is that of the CloudEvents binding: `ce_` for Kafka, `ce-` for NATS, and so on.
    """
    own = {
        "relay-id": event.id,
        "relay-event": event.kind,
        "relay-source": event.source,
        "relay-received-at": cloudevents.rfc3339(event.received_ms),
    }
    if form == "raw":
        return own
    named = cloudevents.attributes(event)
    return own | {f"{prefix}{name}": value for name, value in named.items()}
