"""Failures of the proxy on the way, which are never told as the destination's (pure).

Through a tunnel (CONNECT, for https) all that comes is the destination's. Over plain http a proxy's
own answers look like the destination's but for the marks that some proxies leave.
"""

import re
from collections.abc import Mapping

import aiohttp

from relay.core.errors import Meaning, Misconfigured, Refused, SinkError, Temporary

_CREDENTIALS = (
    Misconfigured,
    "it requires credentials, or other ones than those in proxy_url",
)

MEANINGS: Mapping[int, Meaning] = {
    401: _CREDENTIALS,  # tinyproxy has it for wrong ones
    403: (Misconfigured, "its rules do not allow this destination"),
    407: _CREDENTIALS,
    408: (Temporary, "it gave up waiting for our request"),
    429: (Temporary, "it asks for a slower pace"),
    502: (Temporary, "it cannot reach the destination"),
    503: (Temporary, "it cannot reach the destination"),
    504: (Temporary, "the destination does not answer it"),
}

_BY_CLASS: Mapping[int, Meaning] = {
    5: (Temporary, "it has a fault, or cannot reach the destination"),
}
_OTHER = (Misconfigured, "it does not take our request: check proxy_url")

_TOO_LARGE = 413

_MARK = "x-squid-error"
_HALF_DONE = re.compile("ERR_(READ|WRITE|ZERO_SIZE|INVALID_RESP)")
"""Squid's names for a destination that was reached and gave no whole answer."""
_OWN_SERVER = re.compile("tinyproxy", re.IGNORECASE)
"""Value of Server in answers of a proxy's own, which has no Via then."""


def of_status(status: int) -> SinkError:
    """Return the error of an answer that the proxy gave itself."""
    kind, text = MEANINGS.get(status) or _BY_CLASS.get(status // 100, _OTHER)
    return kind(f"the proxy answers {status}: {text}", unsent=True)


def of_answer(answer: aiohttp.ClientResponse) -> SinkError | None:
    """Return the error of an answer over plain http if it bears a proxy's mark.

    The proxy had the whole request by then, so that the event itself may be at fault.
    """
    status, headers = answer.status, answer.headers
    is_marked = _MARK in headers or (
        _OWN_SERVER.match(headers.get("server", "")) is not None and "via" not in headers
    )
    if not (status == 407 or (is_marked and status >= 300)):
        return None
    if status == _TOO_LARGE:
        reason = f"the proxy answers {status}: the event is too large for it"
        return Refused(reason, about_event=True)
    if _HALF_DONE.match(headers.get(_MARK, "")):
        reason = f"the proxy answers {status}: the destination gave it no whole answer"
        return Temporary(reason, about_event=True)
    return of_status(status)


def of_connecting(error: Exception, cause: str) -> SinkError:
    """Return the error of a connection that did not come about; `cause` says it of any peer."""
    match error:
        case aiohttp.ClientHttpProxyError(status=status):
            return of_status(status)
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientConnectorDNSError():
            return unreachable(cause)
        case aiohttp.ConnectionTimeoutError():
            return unreachable("it has opened no way to the destination in time")
        case aiohttp.ClientConnectorError():
            return unreachable("the connection to the destination broke off during its set-up")
        case aiohttp.ClientResponseError():
            return unreachable("what answers there is no HTTP proxy")
    return unreachable("the connection ended without an answer to CONNECT")


def after_sending(failure: SinkError) -> SinkError:
    """Return the error of an exchange over plain http that ended without an answer.

    The proxy may have hung up, or have passed on that the destination did.
    """
    return Temporary(f"the proxy: {failure.reason}", about_event=failure.about_event)


def unreachable(cause: str) -> SinkError:
    return Temporary(f"the proxy: {cause}", unsent=True)
