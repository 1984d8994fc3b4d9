"""How a command reaches the running relay: its admin API, found by the same config."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import msgspec

from relay import endpoint
from relay.config import default_path, load_admin
from relay.errors import ApiError, Fault

WAIT_S = 60.0
"""A replay of many events is counted before it is answered."""

Query = Mapping[str, str | int | None]


class Client:
    """The admin API, as a command sees it; every method raises ApiError."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def get(self, path: str, query: Query | None = None) -> Any:
        """The answer to a question; values of the query that are None are left out."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return self._ask("GET", path, params=given)

    def get_at_length(self, path: str) -> Any:
        """The answer to a question over which the relay may sit for any time."""
        return self._ask("GET", path, timeout=None)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Have something done; values of the body that are None are left out."""
        given = {name: value for name, value in (body or {}).items() if value is not None}
        return self._ask("POST", path, json=given)

    def reload(self) -> Any:
        """Have the config read again; what it changes."""
        return self._ask("POST", str(self._http.base_url.join("/-/reload")))

    def save(self, path: str, file: Path) -> None:
        """Write an answer into a new file that nobody else may read; raises FileExistsError."""
        with self._told(), self._http.stream("GET", path, timeout=None) as answer:
            if not answer.is_success:
                answer.read()
                raise _refusal(answer)
            with open(file, "xb", opener=_private) as opened:
                opened.writelines(answer.iter_bytes())
                opened.flush()
                os.fsync(opened.fileno())

    def stream(self, path: str, query: Query | None = None) -> Iterator[str]:
        """The lines of an endless answer, as they come."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        with self._told():
            asked = self._http.stream("GET", path, params=given, timeout=None)
            with asked as answer:
                if not answer.is_success:
                    answer.read()
                    raise _refusal(answer)
                yield from answer.iter_lines()

    @property
    def _where(self) -> str:
        return self._http.base_url.netloc.decode()

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        with self._told():
            answer = self._http.request(method, path, **options)
        if not answer.is_success:
            raise _refusal(answer)
        return answer.json()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError:
            raise ApiError(f"no relay answers at {self._where}: does it run?") from None
        except httpx.TimeoutException:
            raise ApiError(f"the relay at {self._where} does not answer in time") from None
        except httpx.HTTPError:
            raise ApiError(f"the relay at {self._where} hung up; see its log") from None


class _Problem(msgspec.Struct):
    """Problem details (RFC 9457), as far as they are shown."""

    title: str = ""
    detail: str = ""
    faults: tuple[Fault, ...] = ()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _refusal(answer: httpx.Response) -> ApiError:
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return ApiError(
            "the relay does not take this token: the running one was started with another "
            "[admin] token than this config has; SIGHUP makes it read the config again"
        )
    try:
        problem = msgspec.json.decode(answer.content, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _Problem()
    text = problem.detail or problem.title or f"the relay answers {answer.status_code}"
    return ApiError(text, faults=problem.faults)


@contextmanager
def connected(path: Path | None) -> Iterator[Client]:
    """A client for the relay of a config; raises ConfigError."""
    file = path or default_path()
    server, admin = load_admin(file)
    if admin.token is None:
        raise ApiError(f"{file}: [admin] token is not set, so the admin API is off")
    with httpx.Client(
        base_url=f"{endpoint.url(server.admin_listen)}/api/v1",
        headers={
            "authorization": f"Bearer {admin.token.reveal()}",
            "user-agent": f"relay/{version('relay')} (command line)",
        },
        timeout=WAIT_S,
        trust_env=False,
    ) as http:
        yield Client(http)
