"""Google's credentials: their search, their requests, and the meanings of their failures.

The library's calls block, so they run in a thread; its requests still go through the relay's own
HTTP client, on the event loop, where closing the sink cancels them. The library's own transport
cannot be cancelled, sleeps between retries, and has other CAs, proxies and redirects.
"""

import asyncio
import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import google.auth
import orjson
from google.auth import exceptions, transport
from google.oauth2 import credentials as authorized_user
from google.oauth2 import service_account

from relay.core.config_values import Duration
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.proxies import Proxies
from relay.outbound.http import client as http_client
from relay.outbound.http import oauth2

# It warns of each failed attempt, which the dispatcher reports once.
for _name in ("google.auth", "google.oauth2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)

ENVIRONMENT = "GOOGLE_APPLICATION_CREDENTIALS"

_LOADERS: Mapping[str, Callable[..., Any]] = {
    "service_account": service_account.Credentials.from_service_account_info,
    "authorized_user": authorized_user.Credentials.from_authorized_user_info,
}
_CODES: Mapping[str, str] = {
    **oauth2.CODES,
    "invalid_grant": "the key or the login has expired or was revoked, or our clock is wrong",
}
_STS = "Error code "
"""Beginning of the library's error for a rejected workload identity."""
_OF_METADATA = "metadata-flavor"
"""Header that only requests to a metadata server have."""
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})

Load = Callable[[Any], Any]
"""Find the credentials; runs in a thread."""


def from_json(text: str) -> Load:
    """Read the setting `credentials`; raises ValueError, which does not repeat it."""
    try:
        info = orjson.loads(text)
        credentials = _LOADERS[info["type"]](info)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            "credentials: expected the JSON of a service account's key or of an authorized"
            " user's login"
        ) from None
    return lambda _: credentials


def search(request: Any) -> Any:
    """Search Google's usual places: a named file, gcloud's login, the metadata server."""
    try:
        return google.auth.default(request=request)[0]
    except exceptions.DefaultCredentialsError:
        named = os.environ.get(ENVIRONMENT)
    if named:
        raise Misconfigured(f"the file that {ENVIRONMENT} names is missing or holds no credentials")
    raise Misconfigured(
        f"there are no credentials: set `credentials` or {ENVIRONMENT}, or run where Google's"
        " metadata server is"
    )


class _Response(NamedTuple):
    """A response as the library expects it."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Transport(transport.Request):
    """Sends the library's requests, which it makes in a thread, through the event loop."""

    def __init__(self, timeout: Duration, proxies: Proxies) -> None:
        self._client = http_client.HttpClient(
            timeout_s=timeout.seconds, connections=1, proxies=proxies
        )
        self._direct = http_client.HttpClient(timeout_s=timeout.seconds, connections=1)
        self.loop: asyncio.AbstractEventLoop
        """Set before the first request."""
        self._timeout_s = timeout.seconds
        self._pending: Future[Any] | None = None

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: object,
    ) -> _Response:
        host, path = urlsplit(url).hostname, urlsplit(url).path
        # A metadata server belongs to the machine: a proxy would ask its own.
        is_local = any(name.lower() == _OF_METADATA for name in headers or ())
        exchange = (self._direct if is_local else self._client).exchange(
            http_client.HttpEndpoint.of(url),
            method=method,
            headers=(headers or {}).items(),
            body=body or b"",
        )
        limited = asyncio.wait_for(exchange, min(timeout or math.inf, self._timeout_s))
        self._pending = asyncio.run_coroutine_threadsafe(limited, self.loop)
        try:
            response = self._pending.result()
        except CancelledError:
            raise Temporary("no token: the sink is closed") from None
        except (SinkError, TimeoutError) as error:
            if path in ("", "/"):
                # Only the search for a metadata server has no path: there is none.
                return _Response(0, {}, b"")
            failure = error if isinstance(error, SinkError) else Temporary("no answer in time")
            raise type(failure)(
                f"no token: {host}: {failure.reason}", unsent=failure.unsent
            ) from None
        if response.status in _TRANSIENT:
            # The library would sleep and retry; the relay does that, and reports it.
            raise Temporary(f"no token: {host} answers {response.status}")
        return _Response(response.status, response.headers, response.body)

    async def close(self) -> None:
        await self._client.close()
        await self._direct.close()

    def cancel(self) -> None:
        """Cancel the pending request, if any."""
        if self._pending is not None:
            self._pending.cancel()


def classify(error: Exception) -> SinkError:
    match error:
        case SinkError():
            return error
        case exceptions.GoogleAuthError(retryable=True):
            return Temporary(f"no token: {_code(error)}")
        case exceptions.GoogleAuthError():
            return Misconfigured(f"no token: {_code(error)}")
    return Temporary(f"no token: an answer that cannot be understood ({type(error).__name__})")


def _code(error: exceptions.GoogleAuthError) -> str:
    """Return OAuth's error code at most, because the library quotes whole responses."""
    codes = [arg.get("error") for arg in error.args if isinstance(arg, dict)]
    texts = [arg.removeprefix(_STS) for arg in error.args if str(arg).startswith(_STS)]
    code = re.match("[a-z_]{1,40}(?=:|$)", str([*codes, *texts, ""][0]))
    if code is None:
        return f"the credentials are not accepted ({type(error).__name__})"
    return f"{code[0]}: {_CODES.get(code[0], 'the credentials are not accepted')}"
