"""Requests as the server passes them to the page."""

from collections.abc import Iterable

from starlette.requests import Request

HOST = ("host", "localhost:9464")
ORIGIN = ("origin", "http://localhost:9464")


def request(
    *headers: tuple[str, str],
    peer: str | None = "127.0.0.1",
    method: str = "GET",
    target: str = "/",
    version: str = "1.1",
) -> Request:
    """Return a request to localhost, unless one of the headers is a Host."""
    path, _, query = target.partition("?")
    return Request(
        {
            "type": "http",
            "http_version": version,
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("latin-1"),
            "query_string": query.encode("latin-1"),
            "headers": list(_encoded([*([] if _has_host(headers) else [HOST]), *headers])),
            "client": None if peer is None else (peer, 50_000),
            "server": ("127.0.0.1", 9464),
        }
    )


def _has_host(headers: Iterable[tuple[str, str]]) -> bool:
    return any(name == "host" for name, _ in headers)


def _encoded(headers: Iterable[tuple[str, str]]) -> Iterable[tuple[bytes, bytes]]:
    return ((name.encode(), value.encode("latin-1")) for name, value in headers)
