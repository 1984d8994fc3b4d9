"""Google's credentials: their search, their requests, and the meanings of their failures.

The library's calls block, so they belong into a thread; the network is asked through the event loop
all the same, and so by the relay's one way out by HTTP.
"""

import asyncio
import logging
import math
import os
import re
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import google.auth
import orjson
from google.auth import exceptions
from google.oauth2 import credentials as authorized_user
from google.oauth2 import service_account

from relay.core.config_values import Duration
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.outbound.http import client as http_client
from relay.outbound.http.responses import Response

# It warns of each failed attempt, which the dispatcher reports once.
for _name in ("google.auth", "google.oauth2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)

ENVIRONMENT = "GOOGLE_APPLICATION_CREDENTIALS"

_LOADERS: Mapping[str, Callable[..., Any]] = {
    "service_account": service_account.Credentials.from_service_account_info,
    "authorized_user": authorized_user.Credentials.from_authorized_user_info,
}
_CODES: Mapping[str, str] = {
    "invalid_grant": "the key or the login has expired or was revoked, or our clock is wrong",
    "invalid_client": "the client is unknown, or its secret is wrong",
    "unauthorized_client": "the account may not ask for this",
}
_STS = "Error code "
"""Beginning of the library's error for a rejected workload identity."""
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})

Load = Callable[[Any], Any]
"""Find the credentials; runs in a thread."""


def given(text: str) -> Load:
    """Read a credentials file; raises ValueError, which quotes nothing of it."""
    expected = "expected the JSON of a service account's key or of an authorized user's login"
    try:
        info = orjson.loads(text)
        credentials = _LOADERS[info["type"]](info)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(expected) from None
    return lambda _: credentials


def found(request: Any) -> Any:
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


@dataclass(frozen=True, slots=True)
class _Answer:
    """A response as the library expects it."""

    status: int
    headers: Mapping[str, str]
    data: bytes = field(repr=False)


class Asker:
    """The library's transport, called in its thread."""

    def __init__(self, timeout: Duration) -> None:
        self.client = http_client.Client(timeout_s=timeout.seconds, connections=1)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._timeout_s = timeout.seconds
        self._closed = False
        self._cancel: Callable[[], object] = lambda: None

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: object,
    ) -> _Answer:
        host, path = urlsplit(url).hostname, urlsplit(url).path
        request = self._request(
            url, method, body or b"", headers or {}, min(timeout or math.inf, self._timeout_s)
        )
        try:
            response = self._run(request)
        except SinkError as error:
            if path in ("", "/"):
                # Only the search for a metadata server has no path: there is none, then.
                return _Answer(0, {}, b"")
            raise type(error)(f"no token: {host}: {error.reason}") from None
        if response.status in _TRANSIENT:
            # The library would sleep and retry; the relay does that, and reports it.
            raise Temporary(f"no token: {host} answers {response.status}")
        return _Answer(response.status, response.headers, response.body)

    def close(self) -> None:
        self._closed = True
        self._cancel()

    async def _request(
        self, url: str, method: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> Response:
        try:
            async with asyncio.timeout(limit_s):
                return await self.client.exchange(
                    http_client.Endpoint.of(url), method=method, headers=headers.items(), body=body
                )
        except TimeoutError:
            raise Temporary("no answer in time") from None

    def _run(self, request: Coroutine[None, None, Response]) -> Response:
        if self._closed or self.loop is None:
            request.close()
        else:
            future = asyncio.run_coroutine_threadsafe(request, self.loop)
            self._cancel = future.cancel
            with suppress(CancelledError):
                return future.result()
        raise Temporary("the sink is closed")


def meaning(error: Exception) -> SinkError:
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
    codes = [each.get("error") for each in error.args if isinstance(each, dict)]
    texts = [each.removeprefix(_STS) for each in error.args if str(each).startswith(_STS)]
    found = re.match("[a-z_]{1,40}(?=:|$)", str([*codes, *texts, ""][0]))
    if found is None:
        return f"the credentials are not accepted ({type(error).__name__})"
    return f"{found[0]}: {_CODES.get(found[0], 'the credentials are not accepted')}"
