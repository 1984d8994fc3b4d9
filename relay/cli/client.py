"""How a command reaches the running relay: its admin API, found by the same config."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from relay.config import default_path, load_admin
from relay.errors import ApiError
from relay.listener import local_url

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

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Have something done; values of the body that are None are left out."""
        given = {name: value for name, value in (body or {}).items() if value is not None}
        return self._ask("POST", path, json=given)

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


def _refusal(answer: httpx.Response) -> ApiError:
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return ApiError(
            "the relay does not take this token: the running one was started with another "
            "[admin] token than this config has"
        )
    try:
        problem = answer.json()
        text = str(problem.get("detail") or problem.get("title") or "")
    except (ValueError, AttributeError):
        text = ""
    return ApiError(text or f"the relay answers {answer.status_code}")


@contextmanager
def connected(path: Path | None) -> Iterator[Client]:
    """A client for the relay of a config; raises ConfigError."""
    file = path or default_path()
    server, admin = load_admin(file)
    if admin.token is None:
        raise ApiError(f"{file}: [admin] token is not set, so the admin API is off")
    with httpx.Client(
        base_url=f"{local_url(server.admin_listen)}/api/v1",
        headers={"authorization": f"Bearer {admin.token.reveal()}"},
        timeout=WAIT_S,
        trust_env=False,
    ) as http:
        yield Client(http)
