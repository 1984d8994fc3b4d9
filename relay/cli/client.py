"""How a command reaches the running relay: its admin API."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from relay.cli.answers import VERSION, origin, refusal
from relay.cli.target import Target
from relay.core.errors import ApiError

TIMEOUT_S = 60.0
"""A replay of many events is counted before it is answered."""

API = "/api/v1"

_USER_AGENT = f"relay/{VERSION} (command line)"

Query = Mapping[str, str | int | None]


class Client:
    """The admin API, as a command sees it; every method raises ApiError."""

    def __init__(self, http: httpx.Client, *, unauthorized: str) -> None:
        """`unauthorized` is the complaint about a token that the relay does not take."""
        self._http = http
        self._unauthorized = unauthorized

    def get(self, path: str, query: Query | None = None) -> Any:
        """The answer to a question; values of the query that are None are left out."""
        return self._ask("GET", API + path, params=_without_none(query))

    def get_at_length(self, path: str) -> Any:
        """The answer to a question over which the relay may sit for any time."""
        return self._ask("GET", API + path, timeout=None)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Have something done; values of the body that are None are left out."""
        return self._ask("POST", API + path, json=_without_none(body))

    def health(self) -> Any:
        """Whether the process answers; for anyone."""
        return self._ask("GET", "/healthz")

    def reload(self) -> Any:
        """Have the config read again; what it changes."""
        return self._ask("POST", "/-/reload")

    def save(self, path: str, file: Path) -> None:
        """Write an answer into a new file that nobody else may read; raises FileExistsError."""
        with (
            self._response("GET", API + path, timeout=None) as response,
            open(file, "xb", opener=_private) as opened,
        ):
            opened.writelines(response.iter_bytes())
            opened.flush()
            os.fsync(opened.fileno())

    def stream(self, path: str, query: Query | None = None) -> Iterator[Any]:
        """The server-sent events of an endless answer, as they come."""
        with self._response(
            "GET", API + path, params=_without_none(query), timeout=None
        ) as response:
            relay = origin(response)
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield relay.read(line.removeprefix("data: "))

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        with self._response(method, path, **options) as response:
            return origin(response).read(response.read())

    @contextmanager
    def _response(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """A relay's answer that is a success, its body yet to be read."""
        with self._errors_mapped(), self._http.stream(method, path, **options) as response:
            relay = origin(response)
            if response.status_code == httpx.codes.UNAUTHORIZED:
                raise ApiError(self._unauthorized)
            if not response.is_success:
                response.read()
                raise refusal(response, relay)
            yield response

    @contextmanager
    def _errors_mapped(self) -> Iterator[None]:
        where = self._http.base_url.netloc.decode()
        try:
            yield
        except httpx.ConnectError as error:
            raise ApiError(
                f"no relay answers at {where}: {error}; start it, or check the address "
                "(server.admin_listen, or --url)"
            ) from None
        except httpx.TimeoutException:
            raise ApiError(f"the relay at {where} does not answer in time") from None
        except httpx.HTTPError:
            raise ApiError(
                f"{where} ended the connection without a whole answer in HTTP: see the relay's "
                "log, and check that this is its admin listener (a TLS port ends like this, too)"
            ) from None


def _without_none(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (values or {}).items() if value is not None}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def connected(target: Target, *, timeout: float | httpx.Timeout = TIMEOUT_S) -> Iterator[Client]:
    """A client for a relay; `timeout` is in seconds. Raises ConfigError and ApiError."""
    url, token = target.resolve()
    headers = {"authorization": f"Bearer {token.reveal()}", "user-agent": _USER_AGENT}
    with httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False) as http:
        yield Client(http, unauthorized=_unauthorized(target))


@contextmanager
def anonymous(target: Target, *, timeout_s: float) -> Iterator[Client]:
    """A client without a token, for the open paths; raises as `connected` does."""
    url = target.resolve_url()
    with httpx.Client(base_url=url, timeout=timeout_s, trust_env=False) as http:
        yield Client(http, unauthorized="a relay wants no token for this")


def _unauthorized(target: Target) -> str:
    if target.token is not None:
        return "the relay does not take the token of --token"
    return (
        "the relay does not take this token: the running one was started with another "
        "[admin] token than this config has; SIGHUP makes it read the config again"
    )
