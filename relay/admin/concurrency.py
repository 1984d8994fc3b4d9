"""Limits on requests under way, so that connections are left for health checks and scrapers."""

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


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
