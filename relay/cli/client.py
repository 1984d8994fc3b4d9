"""Client of a running relay's admin API: which relay, its responses, and commands that only ask."""

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click
import httpx
import msgspec

from relay import __version__
from relay.cli import private_file
from relay.cli.output import Output, printing
from relay.cli.parameters import config_option, parsed
from relay.config import default_path, load_admin_address, load_admin_token, rules
from relay.core import foreign_json
from relay.core.config_values import Secret
from relay.core.errors import AdminApiError, ConfigError, Fault, RelayUnreachable

T = TypeVar("T")


class RelayTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a command that select a relay; the config supplies absent ones."""

    path: Path | None
    url: httpx.URL | None
    token: Secret | None

    @property
    def config(self) -> Path:
        """The config's path; the file is read only for an absent option."""
        return self.path or default_path()

    def resolve(self) -> tuple[httpx.URL, Secret]:
        """Return the URL of the admin listener and its token.

        Raises ConfigError for a faulty config, and AdminApiError if it has no token.
        """
        url, token = self.resolve_url(), self.token or self._read(load_admin_token)
        if token is None:
            raise AdminApiError(
                f"{self.config}: [admin] token is not set, so the relay's admin API is off; "
                "set it, or give --token"
            )
        return url, token

    def resolve_url(self) -> httpx.URL:
        """Return the URL of the admin listener; raises ConfigError."""
        return self.url or httpx.URL(self._read(load_admin_address).url())

    def _read(self, load: Callable[[Path], T]) -> T:
        try:
            return load(self.config)
        except ConfigError as error:
            error.add_note(_WITHOUT_CONFIG)
            raise


_WITHOUT_CONFIG = (
    "to reach the running relay without this config, give --url http://HOST:PORT of its admin "
    "listener and --token REF"
)


def _admin_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in {"http", "https"} or not url.host or url.userinfo or url.query:
        raise ValueError("expected a URL such as http://127.0.0.1:9464")
    return url


def _token(text: str) -> Secret:
    token = Secret.resolve(text)
    fault = rules.unsendable(token)
    if fault is not None:
        raise ValueError(f"the token {fault}")
    return token


url_option = click.option(
    "--url",
    metavar="URL",
    callback=parsed(_admin_url),
    help="The relay's admin listener; default: the config's.",
)
_token_option = click.option(
    "--token",
    metavar="REF",
    callback=parsed(_token),
    help="Its token: env:NAME, file:/path or the token; default: the config's.",
)


def _is_text(value: object) -> bool:
    """False for a text with bytes that are not UTF-8, which Python holds as surrogates."""
    return not isinstance(value, str) or foreign_json.whole(value) == value


def relay_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --config, --url and --token, which the command gets as one `target`."""

    @config_option
    @url_option
    @_token_option
    @functools.wraps(command)
    def targeted(
        *arguments: Any,
        path: Path | None,
        url: httpx.URL | None,
        token: Secret | None,
        **named: Any,
    ) -> Any:
        if not all(map(_is_text, named.values())):
            raise click.UsageError("an argument is not UTF-8 text, and no relay knows such a one")
        return command(*arguments, target=RelayTarget(path=path, url=url, token=token), **named)

    return targeted


TIMEOUT_S = 60.0
"""Long, because the relay counts a replay's events before it responds."""

API = "/api/v1"

_ERRNO = re.compile(r"^\[Errno -?\d+\] ")

_USER_AGENT = f"relay/{__version__} (command line)"


_UNKNOWN_OPERATION = frozenset({httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED})


class Origin(msgspec.Struct, frozen=True):
    """The relay that sent a response."""

    address: str
    version: str
    now_ms: int
    """Time of the response by the relay's clock, by which all of its times go."""

    @property
    def versions(self) -> str:
        relay = f"the relay at {self.address} has {self.version}"
        advice = "" if self.version == __version__ else "; use the command of the relay's version"
        return f"this command has version {__version__}, {relay}{advice}"

    def read(self, text: str | bytes) -> Any:
        """Decode a JSON object; raises AdminApiError."""
        try:
            document = json.loads(text, object_pairs_hook=lambda pairs: JsonObject(pairs, self))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, JsonObject):
            raise AdminApiError(f"cannot read the response: {self.versions}")
        return document


class JsonObject(dict[str, Any]):
    """A JSON object of a response; a missing key raises AdminApiError."""

    def __init__(self, pairs: Iterable[tuple[str, Any]], origin: Origin) -> None:
        super().__init__(pairs)
        self._origin = origin

    @property
    def now_ms(self) -> int:
        """Time of the response by the relay's clock."""
        return self._origin.now_ms

    def convert(self, kind: type[T]) -> T:
        """Convert it to a typed value; raises AdminApiError."""
        try:
            return msgspec.convert(self, kind)
        except msgspec.ValidationError as error:
            raise AdminApiError(
                f"cannot read the response ({error}): {self._origin.versions}"
            ) from None

    def __missing__(self, key: str) -> Any:
        raise AdminApiError(f"the response has no `{key}`: {self._origin.versions}")


def origin(response: httpx.Response) -> Origin:
    """Return the relay that sent a response; raises AdminApiError for another server."""
    address = response.url.netloc.decode()
    relay_version = response.headers.get("relay-version")
    if relay_version is None:
        kind = response.headers.get("content-type", "no content type")
        raise AdminApiError(
            f"{address} is not the admin listener of a relay: it returned {response.status_code}, "
            f"{kind}; check the address"
        )
    # A relay of an older version does not say.
    now_ms = response.headers.get("relay-now") or time.time_ns() // 1_000_000
    return Origin(address, relay_version, int(now_ms))


class _Problem(msgspec.Struct):
    """Problem details (RFC 9457), reduced to the fields that are shown."""

    title: str = ""
    detail: str = ""
    faults: tuple[Fault, ...] = ()


def refusal(response: httpx.Response, relay: Origin) -> AdminApiError:
    """Create the error for an unsuccessful response whose body is read."""
    try:
        problem = msgspec.json.decode(response.content, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _Problem()
    if response.status_code in _UNKNOWN_OPERATION and not problem.detail:
        operation = f"{response.request.method} {response.url.path}"
        return AdminApiError(f"the relay does not support {operation}: {relay.versions}")
    text = problem.detail or problem.title or f"the relay returned {response.status_code}"
    error = AdminApiError(text, faults=problem.faults)
    if relay.version != __version__:
        error.add_note(relay.versions)
    return error


Query = Mapping[str, str | int | None]


class AdminClient:
    """Client of the admin API; every method raises AdminApiError.

    A relay that does not answer is a RelayUnreachable.
    """

    def __init__(self, http: httpx.Client, *, unauthorized: str) -> None:
        """`unauthorized` is the message for a refused token."""
        self._http = http
        self._unauthorized = unauthorized

    def get(self, path: str, query: Query | None = None) -> Any:
        """Return the response to a GET; query values that are None are left out."""
        return self._ask("GET", API + path, params=_without_none(query))

    def get_at_length(self, path: str) -> Any:
        """Return the response to a GET without a timeout."""
        return self._ask("GET", API + path, timeout=None)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Return the response to a POST; body values that are None are left out."""
        return self._ask("POST", API + path, json=_without_none(body))

    def health(self) -> Any:
        """Return the response of /healthz."""
        return self._ask("GET", "/healthz")

    def reload(self) -> Any:
        """Reload the config and return the changes."""
        return self._ask("POST", "/-/reload")

    def save(self, path: str, file: Path) -> None:
        """Write a response to a new file with mode 0600; raises FileExistsError.

        There is no file if the response does not arrive whole, also after a signal.
        """
        with (
            private_file.appearing(file) as opened,
            self._response("GET", API + path, timeout=None) as response,
        ):
            opened.writelines(response.iter_bytes())

    def stream(self, path: str, query: Query | None = None) -> Iterator[Any]:
        """Yield the server-sent events of an endless response, until it ends or breaks off."""
        with self._response(
            "GET", API + path, params=_without_none(query), timeout=None
        ) as response:
            relay = origin(response)
            with suppress(httpx.TransportError):
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        yield relay.read(line.removeprefix("data: "))

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        with self._response(method, path, **options) as response:
            return origin(response).read(response.read())

    @contextmanager
    def _response(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """Open a request and yield its successful response, body unread."""
        where = self._http.base_url.netloc.decode()
        try:
            with self._http.stream(method, path, **options) as response:
                relay = origin(response)
                if response.status_code == httpx.codes.UNAUTHORIZED:
                    raise AdminApiError(self._unauthorized)
                if not response.is_success:
                    response.read()
                    raise refusal(response, relay)
                yield response
        except httpx.ConnectError as error:
            cause = _ERRNO.sub("", str(error))
            raise RelayUnreachable(
                f"cannot connect to the relay at {where}: {cause}; start it, or check the address "
                "(server.admin_listen, or --url)"
            ) from None
        except httpx.TimeoutException:
            raise RelayUnreachable(
                f"the relay at {where} did not respond in time; check its log"
            ) from None
        except httpx.HTTPError:
            raise RelayUnreachable(
                f"{where} closed the connection without a complete HTTP response; check the "
                "relay's log, and that this is its admin listener and not a TLS port"
            ) from None


def _without_none(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (values or {}).items() if value is not None}


def _http(url: httpx.URL, **options: Any) -> httpx.Client:
    # Loading CAs takes longer than a request, and plain HTTP has nothing to verify.
    verify = url.scheme == "https"
    return httpx.Client(base_url=url, verify=verify, trust_env=False, **options)


@contextmanager
def connected(
    target: RelayTarget, *, timeout: float | httpx.Timeout = TIMEOUT_S
) -> Iterator[AdminClient]:
    """Open a client for a relay; `timeout` is in seconds. Raises ConfigError and AdminApiError."""
    url, token = target.resolve()
    headers = {"authorization": f"Bearer {token.reveal()}", "user-agent": _USER_AGENT}
    with _http(url, headers=headers, timeout=timeout) as http:
        yield AdminClient(http, unauthorized=_unauthorized(target))


_PROTECTED = "the server asks for a token, which a relay's /healthz never does; check the address"


@contextmanager
def anonymous(target: RelayTarget, *, timeout_s: float) -> Iterator[AdminClient]:
    """Open a client without a token, for the open paths; raises as `connected` does."""
    url = target.resolve_url()
    with _http(url, timeout=timeout_s) as http:
        yield AdminClient(http, unauthorized=_PROTECTED)


def _unauthorized(target: RelayTarget) -> str:
    if target.token is not None:
        return "the relay refused the token of --token; give the one of its config's [admin] table"
    return (
        "the relay refused this config's [admin] token: it runs with another one; mostly the "
        "variable or file that holds it differs in this shell, so use the relay's; if the token "
        "was changed, reload the relay's config with SIGHUP"
    )


def relay_command(command: Callable[..., Output]) -> Callable[..., None]:
    """Pass a command a connected client, and print its output.

    Adds --config, --url, --token and --json.
    """

    @relay_options
    @printing
    @functools.wraps(command)
    def connected_command(*, target: RelayTarget, **parameters: Any) -> Output:
        with connected(target) as client:
            return command(client, **parameters)

    return connected_command
