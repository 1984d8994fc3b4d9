"""Cookies of the session and of the browser: names and attributes depend on the page's URL."""

import re

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from relay.admin.page.access.address import BrowserAddress
from relay.store.sessions import KNOWN_MS

IDENTIFIER_BYTES = 32

_IDENTIFIER = re.compile(rf"[0-9a-f]{{{2 * IDENTIFIER_BYTES}}}")


class Cookie(msgspec.Struct, frozen=True):
    """Name and attributes of a cookie that holds an identifier."""

    name: str
    path: str
    is_secure: bool
    age_s: int | None = None
    """None: until the browser is closed."""

    def read(self, request: Request) -> bytes | None:
        """Return the identifier; None without one, or with several."""
        values = {value for name, value in _pairs(request) if name == self.name}
        value = values.pop() if len(values) == 1 else ""
        return bytes.fromhex(value) if _IDENTIFIER.fullmatch(value) else None

    def set(self, identifier: bytes) -> str:
        """Return a Set-Cookie header."""
        age = "" if self.age_s is None else f"; Max-Age={self.age_s}"
        return f"{self._header(identifier.hex())}{age}"

    def delete(self) -> str:
        """Return a Set-Cookie header that removes the cookie."""
        return f"{self._header('')}; Max-Age=0"

    def of_browser(self) -> "Cookie":
        """Return the cookie by which a browser is known after its session."""
        return replace(self, name=f"{self.name}-known", age_s=KNOWN_MS // 1000)

    def _header(self, value: str) -> str:
        secure = "; Secure" if self.is_secure else ""
        return f"{self.name}={value}; Path={self.path}; HttpOnly; SameSite=Strict{secure}"


def session_cookie(place: BrowserAddress) -> Cookie | None:
    """Return the cookie of the session; None if anybody on the way could read it."""
    if place.scheme == "https" and not place.prefix:
        return Cookie("__Host-relay", "/", is_secure=True)
    if place.scheme == "https":
        # `Path=/` would send it to the neighbours behind the same proxy (Airflow, CVE-2026-28779).
        return Cookie("__Secure-relay", place.prefix, is_secure=True)
    if place.host.is_loopback:
        # Not secure, because Safari refuses that over http even here. The port is part of the
        # name, because cookies ignore ports, and two relays would log each other out.
        name = f"relay-{place.host.port_of('http')}"
        return Cookie(name, place.prefix or "/", is_secure=False)
    return None


def _pairs(request: Request) -> list[tuple[str, str]]:
    parts = ";".join(request.headers.getlist("cookie")).split(";")
    pairs = (part.partition("=") for part in parts)
    return [(name.strip(), value.strip()) for name, _, value in pairs]
