"""The session's cookie: its name and attributes depend on how the page is reached."""

import re

import msgspec
from starlette.requests import Request

from relay.admin.page.access.address import Place

IDENTIFIER_BYTES = 32

_IDENTIFIER = re.compile(rf"[0-9a-f]{{{2 * IDENTIFIER_BYTES}}}")


class SessionCookie(msgspec.Struct, frozen=True):
    """Name and attributes of the cookie."""

    name: str
    path: str
    is_secure: bool

    def read(self, request: Request) -> bytes | None:
        """Return the identifier of the session; None without one, or with several."""
        values = {value for name, value in _pairs(request) if name == self.name}
        value = values.pop() if len(values) == 1 else ""
        return bytes.fromhex(value) if _IDENTIFIER.fullmatch(value) else None

    def set(self, identifier: bytes) -> str:
        """Return a Set-Cookie header that lasts until the browser is closed."""
        return self._header(identifier.hex())

    def delete(self) -> str:
        """Return a Set-Cookie header that removes the cookie."""
        return f"{self._header('')}; Max-Age=0"

    def _header(self, value: str) -> str:
        secure = "; Secure" if self.is_secure else ""
        return f"{self.name}={value}; Path={self.path}; HttpOnly; SameSite=Strict{secure}"


def session_cookie(place: Place) -> SessionCookie | None:
    """Return the cookie to use; None if anybody on the way could read it."""
    if place.scheme == "https" and not place.prefix:
        return SessionCookie("__Host-relay", "/", is_secure=True)
    if place.scheme == "https":
        # `Path=/` would send it to the neighbours behind the same proxy (Airflow, CVE-2026-28779).
        return SessionCookie("__Secure-relay", place.prefix, is_secure=True)
    if place.host.is_loopback:
        # Not secure, because Safari refuses that over http even here. The port is part of the
        # name, because cookies ignore ports, and two relays would log each other out.
        name = f"relay-{place.host.port_of('http')}"
        return SessionCookie(name, place.prefix or "/", is_secure=False)
    return None


def _pairs(request: Request) -> list[tuple[str, str]]:
    parts = ";".join(request.headers.getlist("cookie")).split(";")
    pairs = (part.partition("=") for part in parts)
    return [(name.strip(), value.strip()) for name, _, value in pairs]
