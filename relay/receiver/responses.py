"""What the sender is told: a code, and one JSON object (CONTRACT.md, section 3).

Never a redirect, never 410, never 500.
"""

import orjson
from starlette.types import Send

from relay.core.event import Outcome

_CODES = {"accepted": 202, "duplicate": 200, "conflict": 200, "unreadable": 200}


class Response:
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


def acknowledgement(outcome: Outcome, event_id: str | None) -> Response:
    """The answer to a verified request; an unreadable one has no id."""
    # A conflict is our affair: for the sender the event is known, and trying again is in vain.
    status: str = "duplicate" if outcome == "conflict" else outcome
    content = {"status": status} if event_id is None else {"status": status, "id": event_id}
    return Response(_CODES[outcome], content)


def refusal(reason: str) -> Response:
    """The answer to a request that is not taken; why a signature is not good stays unsaid."""
    return _REFUSALS.get(reason, _UNAUTHORIZED)


_UNAUTHORIZED = Response(401, {"status": "unauthorized"})
# What is left of an unread body would be taken for the next request, so those connections close.
_REFUSALS = {
    "path": Response(404, {"status": "not found"}),
    "method": Response(405, {"status": "method not allowed"}, allow="POST"),
    "timeout": Response(408, {"status": "timeout"}, connection="close"),
    "disconnected": Response(408, {"status": "timeout"}, connection="close"),
    "too_large": Response(413, {"status": "too large"}, connection="close"),
    "unavailable": Response(503, {"status": "unavailable"}, retry_after="10"),
}
