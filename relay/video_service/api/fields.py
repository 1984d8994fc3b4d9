"""Names of the fields in the API's answers, and how a field is read.

The service's document leaves most names open: these are the assumptions of docs/video-service.md.
Reading is tolerant: a field that is missing or of another type is None.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from relay.core.config_values import Moment

Document = Mapping[str, Any]
"""A JSON object of an answer."""

NAMES: Mapping[str, str] = {
    "next": "next",
    "videos": "videos",
    "video": "video",
    "video.id": "id",
    "video.title": "title",
    "video.status": "status",
    "video.version": "version",
    "video.duration": "durationSeconds",
    "video.width": "width",
    "video.height": "height",
    "video.error": "errorMessage",
    "video.trashed": "trashed",
    "video.created": "createdAt",
    "video.updated": "updatedAt",
    "sessions": "sessions",
    "session.id": "id",
    "session.video": "video",
    "session.viewer": "viewer",
    "session.started": "startedAt",
    "session.ended": "endedAt",
    "session.percent": "watchedPercent",
    "session.finished": "finished",
    "session.submitted": "submitted",
    "viewer.email": "email",
    "viewer.name": "name",
    "watched": "videos",
    "watched.video": "video",
    "watched.percent": "watchedPercent",
    "watched.finished": "finished",
    "watched.first": "firstWatchedAt",
    "watched.last": "lastWatchedAt",
    "lead.id": "id",
    "lead.email": "email",
    "lead.name": "name",
    "lead.fields": "fields",
    "lead.created": "createdAt",
    "webhooks": "webhooks",
    "webhook": "webhook",
    "webhook.id": "id",
    "webhook.url": "url",
    "webhook.events": "events",
    "webhook.secret": "secret",
    "deliveries": "deliveries",
    "delivery.event": "event",
    "delivery.event_id": "eventId",
    "delivery.attempt": "attempt",
    "delivery.state": "state",
    "delivery.status": "status",
    "delivery.response": "response",
    "delivery.time": "startedAt",
}
"""The name in answers of each field, by its key in `[source.api.fields]`."""


class Fields:
    """Reads fields of an answer's objects by their keys in `NAMES`.

    `skipped` counts the items of lists that were of no use.
    """

    def __init__(self, overrides: Mapping[str, str]) -> None:
        self._names = {**NAMES, **overrides}
        self.skipped = 0

    def raw(self, document: Document, key: str) -> Any:
        return document.get(self._names[key])

    def text(self, document: Document, key: str) -> str | None:
        """Return a text that is not empty."""
        value = self.raw(document, key)
        return value if isinstance(value, str) and value else None

    def number(self, document: Document, key: str) -> float | None:
        value = self.raw(document, key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if math.isfinite(value) else None

    def whole(self, document: Document, key: str) -> int | None:
        number = self.number(document, key)
        return int(number) if number is not None and number.is_integer() else None

    def truth(self, document: Document, key: str) -> bool | None:
        value = self.raw(document, key)
        return value if isinstance(value, bool) else None

    def moment(self, document: Document, key: str) -> int | None:
        """Return a time as milliseconds since the epoch; one without an offset is UTC."""
        text = self.text(document, key)
        try:
            return None if text is None else int(Moment.parse(text))
        except ValueError:
            return None

    def texts(self, document: Document, key: str) -> tuple[str, ...] | None:
        """Return a list of texts; None if one of its items is something else."""
        value = self.raw(document, key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            return None
        return tuple(value)

    def table(self, document: Document, key: str) -> dict[str, Any] | None:
        value = self.raw(document, key)
        return value if isinstance(value, dict) else None

    def part(self, document: Document, key: str) -> Document:
        """Return an object inside an object; an empty one if there is none."""
        return self.table(document, key) or {}

    def items(self, document: Document, key: str) -> Iterator[Document]:
        """Yield the objects of a list; all that is no object is skipped."""
        value = self.raw(document, key)
        for item in value if isinstance(value, list) else ():
            if isinstance(item, dict):
                yield item
            else:
                self.skipped += 1
