"""The admin listener's app: which path is answered by what."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from relay.admin.guard import Guard
from relay.admin.problem import on_bug, on_http_error
from relay.admin.readiness import Readiness
from relay.clock import Clock
from relay.metrics import Metrics
from relay.settings import Secret
from relay.store import Store

_FRESH = {"Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """What the admin app is given; without a token only metrics and health are answered."""

    store: Store
    clock: Clock
    metrics: Metrics
    draining: Callable[[], bool]
    token: Secret | None


def admin_app(admin: Admin) -> Starlette:
    """Build the app."""
    readiness = Readiness(admin.store, admin.clock, admin.draining)

    async def metrics(request: Request) -> Response:
        # In a thread: rendering takes milliseconds that belong to acknowledgements.
        accept = request.headers.get("accept", "")
        text, content_type = await asyncio.to_thread(admin.metrics.exposition, accept)
        return Response(text, headers=_FRESH | {"Content-Type": content_type})

    async def ready(_: Request) -> Response:
        problems = await readiness.problems()
        if problems:
            return JSONResponse({"status": "not ready", "problems": problems}, 503, _FRESH)
        return JSONResponse({"status": "ready"}, headers=_FRESH)

    open_routes = [
        Route("/metrics", metrics),
        Route("/healthz", _healthy),
        Route("/readyz", ready),
    ]
    open_paths = frozenset(route.path for route in open_routes)
    app = Starlette(
        routes=open_routes,
        middleware=[Middleware(Guard, token=admin.token, open_paths=open_paths)],
        exception_handlers={HTTPException: on_http_error, Exception: on_bug},
    )
    app.router.redirect_slashes = False
    return app


async def _healthy(_: Request) -> Response:
    return JSONResponse({"status": "ok"}, headers=_FRESH)
