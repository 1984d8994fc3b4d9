"""Responses to the sender: a code and one JSON object (CONTRACT.md, section 3).

Never a redirect, never 410, never 500.
"""

import orjson
from starlette.types import Send

from relay.core.event import Event, Outcome, Unreadable

_CODES = {"accepted": 202, "duplicate": 200, "conflict": 200, "unreadable": 200}


class PlainResponse:
    """In place of Starlette's Response, which costs several times as much."""

    def __init__(self, code: int, content: dict[str, str], **headers: str) -> None:
        """Underscores in the names of headers stand for hyphens."""
        self.code = code
        self._body = orjson.dumps(content)
        self._headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self._body)),
            *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
        ]

    async def send(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.code, "headers": self._headers}
        await send(head)
        await send({"type": "http.response.body", "body": self._body})


def acknowledgement(outcome: Outcome, content: Event | Unreadable) -> PlainResponse:
    """Response to a verified request; an unreadable one has no id."""
    # The sender cannot resolve a conflict: for it, the event is known.
    fields: dict[str, str] = {"status": "duplicate" if outcome == "conflict" else outcome}
    if isinstance(content, Event):
        fields["id"] = content.id
    return PlainResponse(_CODES[outcome], fields)


def refusal(reason: str) -> PlainResponse:
    """Response to a refused request; it never says why a signature was rejected."""
    return _REFUSALS.get(reason, _UNAUTHORIZED)


_UNAUTHORIZED = PlainResponse(401, {"status": "unauthorized"})
# An unread body would be parsed as the next request, so these connections close.
_REFUSALS = {
    "path": PlainResponse(404, {"status": "not found"}),
    "method": PlainResponse(405, {"status": "method not allowed"}, allow="POST"),
    "timeout": PlainResponse(408, {"status": "timeout"}, connection="close"),
    "disconnected": PlainResponse(408, {"status": "timeout"}, connection="close"),
    "too_large": PlainResponse(413, {"status": "too large"}, connection="close"),
    "unavailable": PlainResponse(503, {"status": "unavailable"}, retry_after="10"),
}
