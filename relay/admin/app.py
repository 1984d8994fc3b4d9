"""The admin listener's app: its paths and their handlers."""

import asyncio
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relay.admin import openapi
from relay.admin.api import OPERATIONS, stream
from relay.admin.auth import BearerAuth, GuessLimits
from relay.admin.operation import FRESH, routes
from relay.admin.page import login
from relay.admin.page.access.control import AccessControl
from relay.admin.page.access.visitor import AdminTokens
from relay.admin.page.app import page_app
from relay.admin.problem import HANDLERS, problem
from relay.admin.services import AdminServices
from relay.core.config_values import Network, Secret
from relay.server.connection_limit import ADMIN_MAX

DOCUMENT = "/api/v1/openapi.json"


_AGAIN = {"Retry-After": "1", **FRESH}
_TOO_MANY = "Too many requests of this page are under way. Try again in a moment."


def admin_app(admin: AdminServices, *, connections: int = ADMIN_MAX) -> ASGIApp:
    """Build the app; `connections` are those of its listener.

    Of these an eighth is left for the open paths, whatever operators do.
    """

    async def metrics(request: Request) -> Response:
        # In a thread, because rendering takes milliseconds and would delay acknowledgements.
        accept = request.headers.get("accept", "")
        text, content_type = await asyncio.to_thread(admin.metrics.exposition, accept)
        return Response(text, headers=FRESH | {"Content-Type": content_type})

    async def ready(_: Request) -> Response:
        problems = await admin.readiness.problems()
        if problems:
            return JSONResponse({"status": "not ready", "problems": problems}, 503, FRESH)
        return JSONResponse({"status": "ready"}, headers=FRESH)

    def token() -> Secret | None:
        return admin.config().admin.token

    def trusted_proxies() -> Sequence[Network]:
        return admin.config().server.trusted_proxies

    limits = GuessLimits(admin.clock, admin.known_clients)
    # Under any Host: probes and scrapers use names that no config knows, and nothing here is
    # personal or secret.
    open_routes = [
        Route("/metrics", metrics),
        Route("/healthz", _healthy),
        Route("/readyz", ready),
    ]
    open_paths = frozenset(route.path for route in open_routes)
    app = Starlette(
        routes=[*open_routes, Route(DOCUMENT, _document), *routes(OPERATIONS, admin)],
        middleware=[
            Middleware(
                BearerAuth,
                token=token,
                trusted_proxies=trusted_proxies,
                limits=limits,
                clock=admin.clock,
                open_paths=open_paths,
            )
        ],
        exception_handlers=HANDLERS,
    )
    app.router.redirect_slashes = False
    page = page_app(admin, _access_control(admin, limits))
    whole = _beside(app, page, open_paths, connections)
    return _signed(whole, admin)


def _beside(app: ASGIApp, page: ASGIApp, open_paths: Collection[str], connections: int) -> ASGIApp:
    """Serve the page at all paths that are not the API's: the two have different credentials."""
    api = Limited(app, connections // 2, _refusal("requests"))
    streams = Limited(api, connections // 4, _refusal("streams"))
    pages = Limited(page, connections * 3 // 8, PlainTextResponse(_TOO_MANY, 503, _AGAIN))

    async def chosen(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path in open_paths:
            answering = app
        elif path == stream.PATH:
            answering = streams
        elif path.startswith(("/api/", "/-/")) or path == "/api":
            answering = api
        else:
            # A stranger's login may be slow to come: its connection is evicted when others need it.
            answering = page if path.endswith(login.PATH) else pages
        await answering(scope, receive, send)

    return chosen


def _refusal(what: str) -> Response:
    return problem(
        503,
        f"Too many {what} of the API are under way; others wait for connections. Close some, or "
        "try again later.",
        _AGAIN,
    )


def _access_control(admin: AdminServices, limits: GuessLimits) -> AccessControl:
    def tokens() -> AdminTokens:
        settings = admin.config().admin
        return AdminTokens(admin=settings.token, viewer=settings.viewer_token)

    return AccessControl(
        sessions=admin.store.sessions,
        limits=limits,
        clock=admin.clock,
        tokens=tokens,
        allowed_hosts=lambda: admin.config().admin.allowed_hosts,
        trusted_proxies=lambda: admin.config().server.trusted_proxies,
    )


def _signed(app: ASGIApp, admin: AdminServices) -> ASGIApp:
    """Add the relay's version and time to every response, which commands need to read it."""
    version = (b"relay-version", admin.metrics.process.build.relay.encode())

    async def signed(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                now = (b"relay-now", str(admin.clock.now_ms()).encode())
                message = {**message, "headers": [*message["headers"], version, now]}
            await send(message)

        await app(scope, receive, send_signed)

    return signed


@cache
def _description() -> dict[str, Any]:
    return openapi.document(OPERATIONS)


async def _document(_: Request) -> Response:
    # Built for the first request, because it would take a tenth of the relay's start, and in a
    # thread, because it would delay acknowledgements.
    return JSONResponse(await asyncio.to_thread(_description))


async def _healthy(_: Request) -> Response:
    return JSONResponse({"status": "ok"}, headers=FRESH)


class Limited:
    """An app with a maximum of requests at once; a refusal, itself an app, answers the others."""

    def __init__(self, app: ASGIApp, most: int, refusal: Response) -> None:
        self._app = app
        self._most = max(1, most)
        self._refusal = refusal
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._under_way >= self._most:
            await self._refusal(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1
