"""Addresses to listen on, such as `127.0.0.1:8080`: parsed and formatted."""

from typing import Any

PORT_MAX = 65535


def parts(address: str) -> tuple[str, int]:
    """Read `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080` or `:8080` (every address).

    Raises ValueError.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError('expected an address such as "127.0.0.1:8080" or "[::1]:8080"')
    if ":" in host and not bracketed:
        raise ValueError('an IPv6 address stands in brackets: "[::1]:8080"')
    return host[1:-1] if bracketed else host, int(port)


def url(address: str, port: int | None = None) -> str:
    """Return the URL of an address from the same machine, with `port` in place of its own."""
    host, own = parts(address)
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://{name((host, own if port is None else port))}"


def name(bound: tuple[Any, ...]) -> str:
    """Format a socket's name as host and port; the rest of an IPv6 name is left out."""
    host, port = bound[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
