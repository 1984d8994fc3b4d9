"""Failures of the proxy on the way, which are never told as the destination's (pure).

Through a tunnel (CONNECT, for https) all that comes is the destination's. Over plain http a proxy's
own answers look like the destination's but for the marks that some proxies leave.
"""

import re
from collections.abc import Mapping

import aiohttp

from relay.core.errors import Meaning, Misconfigured, SinkError, Temporary

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

_MARK = "x-squid-error"
_OWN_SERVER = re.compile("tinyproxy", re.IGNORECASE)
"""Value of Server in answers of a proxy's own, which has no Via then."""


def of_status(status: int) -> SinkError:
    """Return the error of an answer that the proxy gave itself."""
    kind, text = MEANINGS.get(status) or _BY_CLASS.get(status // 100, _OTHER)
    return kind(f"the proxy answers {status}: {text}", unsent=True)


def of_answer(answer: aiohttp.ClientResponse) -> SinkError | None:
    """Return the error of an answer over plain http if it bears a proxy's mark."""
    status, headers = answer.status, answer.headers
    is_marked = _MARK in headers or (
        _OWN_SERVER.match(headers.get("server", "")) is not None and "via" not in headers
    )
    return of_status(status) if status == 407 or (is_marked and status >= 300) else None


def of_connecting(error: Exception, cause: str) -> SinkError:
    """Return the error of a connection that did not come about; `cause` says it of any peer."""
    match error:
        case aiohttp.ClientHttpProxyError(status=status):
            return of_status(status)
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientConnectorDNSError():
            return unreachable(cause)
        case aiohttp.ConnectionTimeoutError():
            return unreachable("it has not reached the destination in time")
        case aiohttp.ClientConnectorError():
            return unreachable("the connection to the destination broke off during its set-up")
        case aiohttp.ClientResponseError():
            return unreachable("what answers there is no HTTP proxy")
    return unreachable("the connection ended without an answer to CONNECT")


def unreachable(cause: str) -> SinkError:
    return Temporary(f"the proxy: {cause}", unsent=True)
