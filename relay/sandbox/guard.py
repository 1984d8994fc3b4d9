"""Keeps web pages out: one that a developer visits must not use the sandbox on their machine.

It has keys to give away and sends to any address, and a page can send it a form or a plain text
without asking. A name that the page's own server points at this machine would let it read, too.
"""

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from relay.core.hosts import is_allowed, parse_host
from relay.sandbox.api.error_responses import error_answer

_OWN_SITES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site for a request of no other page: `none` was typed or bookmarked."""


class Guard:
    """Serves requests of programs, and of pages that the sandbox has served itself."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: Collection[str]) -> None:
        self._app = app
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        app = self._app if reason is None else error_answer(403, reason)
        await app(scope, receive, send)

    def _refusal(self, headers: Headers) -> str | None:
        """Return why a request is refused; None if it is served."""
        host = parse_host(headers.get("host", ""))
        if host is None:
            return "The header Host is missing or malformed."
        is_own = host.is_loopback or host.is_address or is_allowed(host, self._allowed_hosts)
        if not is_own:
            return (
                f"The sandbox is not known as {host.name}. "
                f"If that is a name of its own, start it with --allowed-host {host.name}."
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        is_foreign = origin is not None and origin not in {
            host.origin("http"),
            host.origin("https"),
        }
        if is_foreign or site not in _OWN_SITES:
            return "A web page of another origin may not use the sandbox."
        return None
