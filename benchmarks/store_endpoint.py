"""What an acknowledgement costs with the relay's verification and store, but without its server.

`python -m benchmarks.store_endpoint PORT FILE` runs it on plain uvicorn. Each event gets two
deliveries, which nobody sends; nothing is counted, logged, limited or timed out.
"""

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.floor_endpoint import serve
from benchmarks.rig import SECRET
from relay.core.authentication import SigningSecret, SourceSettings, authenticate
from relay.core.clock import SystemClock
from relay.core.config_values import Secret, Size
from relay.core.event import Event
from relay.core.routing import Verdict
from relay.store import engines
from relay.store.sqlite.settings import SqliteSettings

_VERDICTS = tuple(Verdict(sink, "takes", "") for sink in ("one", "other"))


class Endpoint:
    """Verifies each request and has the store accept it."""

    def __init__(self, file: str) -> None:
        secret = SigningSecret(secret=Secret(SECRET))
        self._source = SourceSettings(name="main", path="/webhooks", secrets=(secret,))
        self._settings = SqliteSettings(type="sqlite", path=file, min_free=Size.parse("1B"))

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._store = await engines.open_store(self._settings, clock=SystemClock())
        try:
            yield
        finally:
            await self._store.close()

    async def hook(self, request: Request) -> Response:
        body = await request.body()
        now_ms = time.time_ns() // 1_000_000
        content = authenticate(self._source, request.headers.raw, body, now_ms=now_ms).content
        assert isinstance(content, Event)
        await self._store.accept(content, _VERDICTS, lambda _: None)
        return Response(status_code=202)

    async def root(self, _: Request) -> Response:
        return Response(status_code=204)


def main() -> None:
    port, file = sys.argv[1:]
    Path(file).parent.chmod(0o700)
    serve(Endpoint(file), int(port))


if __name__ == "__main__":
    main()
