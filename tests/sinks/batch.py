"""What tests of batches say: the events of one, and what became of each."""

import json
from typing import Any

from msgspec.structs import replace

from relay.core.delivery import SinkResponse
from relay.core.errors import Refused, SinkError
from relay.core.event import Event
from relay.core.sink import Outcomes

DELIVERED = "delivered"


def series(lead: Event, count: int, **changed: Any) -> list[Event]:
    return [replace(lead, id=f"evt_{number}", **changed) for number in range(count)]


def of_kind(event: Event, kind: str) -> Event:
    document = event.document() | {"event": kind}
    return replace(event, kind=kind, body=json.dumps(document).encode())


def unfit(key: str, fault: str) -> Any:
    """Say what becomes of an event of which a template makes no name that the destination takes."""
    return Refused, f"the template of `{key}` fails on this event: the result {fault}"


def kinds(outcomes: Outcomes) -> list[type]:
    return [type(outcome) for outcome in outcomes]


def told(outcomes: Outcomes) -> list[Any]:
    """An error as its type and reason, any answer as `DELIVERED`."""
    return [each_told(outcome) for outcome in outcomes]


def each_told(outcome: SinkResponse | Exception) -> Any:
    if isinstance(outcome, SinkError):
        return type(outcome), outcome.reason
    assert isinstance(outcome, SinkResponse)
    return DELIVERED
