"""The ASGI app of a sandbox: the service's API, its storage, and the controls."""

from collections.abc import Collection

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relay.core.hosts import is_allowed, parse_host
from relay.sandbox.api import analytics, controls, openapi, uploads, videos, viewers, webhooks
from relay.sandbox.api.error_responses import HANDLERS, error_answer
from relay.sandbox.api.operation import routes
from relay.sandbox.connections import hang_up
from relay.sandbox.faults import Faults
from relay.sandbox.services import Services

_OWN_SITES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site for a request of no other page: `none` was typed or bookmarked."""

OPERATIONS = (*uploads.OPERATIONS, *videos.OPERATIONS, *webhooks.OPERATIONS, *analytics.OPERATIONS)


def build(services: Services, *, allowed_hosts: Collection[str]) -> ASGIApp:
    """Build the app that serves one workspace, under loopback names, addresses and these names."""
    app = Starlette(
        routes=[
            *openapi.routes(OPERATIONS),
            *routes(OPERATIONS, services),
            *uploads.storage_routes(services),
            *routes((*controls.OPERATIONS, *viewers.OPERATIONS), services),
        ],
        exception_handlers=HANDLERS,
    )
    guarded = _Guard(app, allowed_hosts=allowed_hosts)
    return _Silence(_Drain(guarded), services.faults)


class _Guard:
    """Keeps web pages out: one that a developer visits must not use the sandbox on their machine.

    It has keys to give away and sends to any address, and a page can send it a form or a plain text
    without asking. A name that the page's own server points at this machine would let it read, too.
    """

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


class _Silence:
    """Hangs up on every request while the service is down, except on the controls."""

    def __init__(self, app: ASGIApp, faults: Faults) -> None:
        self._app = app
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_down = scope["type"] == "http" and self._faults.is_down
        if is_down and not scope["path"].startswith(f"{controls.PREFIX}/"):
            await hang_up(scope, receive)
            return
        await self._app(scope, receive, send)


class _Drain:
    """Reads what is left of a refused body before the response ends.

    A connection that is closed before that is reset, which takes the response with it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_over = False

        async def receive_part() -> Message:
            nonlocal is_over
            message = await receive()
            is_over = not message.get("more_body", False)
            return message

        async def respond(message: Message) -> None:
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
            if not is_last or is_over:
                await send(message)
                return
            await send({**message, "more_body": True})
            while not is_over:
                await receive_part()
            await send({"type": "http.response.body"})

        await self._app(scope, receive_part, respond)
