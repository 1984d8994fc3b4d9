"""Meanings of HTTP responses: status, Retry-After, and the error that follows from them (pure).

outgoing-http.md, sections 3 and 4.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from relay.core import foreign_json
from relay.core.errors import Meaning, Misconfigured, Refused, SinkError, Temporary

_DATE_ERRORS = (ValueError, TypeError, IndexError, ArithmeticError)
"""Everything that the date parser raises: an absurd zone is an OverflowError."""


_FIRST_UNIX_TIME = 1_000_000_000
"""A larger number of seconds is a moment (after 2001), for no API asks for a pause of decades."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response as far as it was read; `complete` says that `excerpt` is all of it."""

    status: int
    headers: Mapping[str, str]
    """Names are case-insensitive."""
    excerpt: str
    complete: bool
    body: bytes = field(default=b"", repr=False)
    """The bytes as read, with any secret in them: to be parsed, never to be shown."""
    is_whole: bool = True
    """Whether `body` is all of it."""


_BY_CLASS: dict[int, Meaning] = {
    3: (Misconfigured, "a redirect, which is never followed: put the final URL into the config"),
    4: (Refused, "the destination refuses this event"),
    5: (Temporary, "the destination has a fault"),
}

MEANINGS: dict[int, Meaning] = {
    **{status: _BY_CLASS[status // 100] for status in range(300, 600)},
    401: (Misconfigured, "the destination does not know our credentials"),
    402: (Misconfigured, "the destination requires payment"),
    403: (Misconfigured, "our credentials do not permit this"),
    404: (Misconfigured, "nothing is at this URL"),
    405: (Misconfigured, "the URL does not take this method"),
    407: (Misconfigured, "a proxy requires credentials"),
    408: (Temporary, "the destination gave up waiting for our request"),
    410: (Misconfigured, "the URL is gone for good"),
    413: (Refused, "the event is too large for the destination"),
    415: (Refused, "the destination does not take this type of content"),
    421: (Misconfigured, "the destination does not serve this host name"),
    425: (Temporary, "the destination asks for it later"),
    426: (Misconfigured, "the destination requires another protocol"),
    429: (Temporary, "the destination asks for a slower pace"),
    502: (Temporary, "the server behind the destination fails"),
    503: (Temporary, "the destination cannot serve now"),
    504: (Temporary, "the server behind the destination does not answer"),
}
"""Every status from 300 to 599; 2xx alone is success (outgoing-http.md, section 3)."""

_UNKNOWN = (Temporary, "a status that HTTP does not have")


def ends_connection(status: int) -> bool:
    """Whether the next request is to go over another connection.

    It is after an answer that speaks of the server rather than of the request: a server that was
    taken out of service lives on for those who keep their connection (RFC 9110, 15.5.20, for 421).
    """
    if 200 <= status < 300 or status == 429:
        return False
    return MEANINGS.get(status, _UNKNOWN)[0] is not Refused


def meaning(status: int) -> Meaning | None:
    """Return the error that a status means; None for a 2xx."""
    return None if 200 <= status < 300 else MEANINGS.get(status, _UNKNOWN)


def raise_for_status(response: HttpResponse, *, now_ms: int, method: str | None = None) -> None:
    """Return for a 2xx; raises Temporary, Refused or Misconfigured as `MEANINGS` says.

    `method` is named in the error where it is not the one that events are sent with.
    """
    failure = meaning(response.status)
    if failure is None:
        return
    said = f"{response.status}" if method is None else f"{response.status} to {method}"
    raise error(failure, response, said=said, now_ms=now_ms)


def error(failure: Meaning, response: HttpResponse, *, said: str, now_ms: int) -> SinkError:
    """Make the error of a response; `said` sums the response up for the operator."""
    kind, text = failure
    result = kind(
        f"{said}: {text}", status=response.status, answer=response.excerpt, about_event=True
    )
    if isinstance(result, Temporary):
        result.retry_after_ms = retry_after_ms(response.headers, now_ms=now_ms)
    return result


def document(response: HttpResponse) -> Mapping[str, Any]:
    """Return the response's JSON object, or an empty one."""
    try:
        read = foreign_json.decode(response.body)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def retry_after_ms(headers: Mapping[str, str], *, now_ms: int) -> int | None:
    """Read Retry-After, seconds or a date (RFC 9110, 10.2.3); None where it says nothing usable.

    Some servers send a fraction of seconds.
    """
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", value):
        return math.ceil(float(value) * 1000)
    try:
        date = parsedate_to_datetime(value)
    except _DATE_ERRORS:
        return None
    # A date without a zone is GMT, the only one that HTTP knows.
    due_s = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    return max(0, int(due_s * 1000) - now_ms)


def reset_ms(headers: Mapping[str, str], name: str, *, now_ms: int) -> int | None:
    """Read a header of an API's own that ends a pause: seconds, or a Unix time.

    None where it says nothing usable. Some APIs write Unix times in milliseconds.
    """
    value = headers.get(name, "").strip()
    if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,12})?", value) is None:
        return None
    number = float(value)
    if number < _FIRST_UNIX_TIME:
        return math.ceil(number * 1000)
    due_ms = number if number >= _FIRST_UNIX_TIME * 1000 else number * 1000
    return max(0, math.ceil(due_ms) - now_ms)
