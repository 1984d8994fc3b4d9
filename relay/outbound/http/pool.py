"""How one sink's requests are spread over its connections."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import cast

import httpcore
import httpx

from relay.outbound.http.backend import Backend

IDLE_S = 5.0
"""A connection that was idle for so long may be closed at the other end by now."""


class ConnectionPools(httpx.AsyncBaseTransport):
    """Spreads requests over pools of one connection each, the idlest first.

    One pool of all of them is less than half as fast: its work is quadratic in their number
    (outgoing-http.md, section 6), and it looks at each idle socket before every request.
    """

    def __init__(self, verify: ssl.SSLContext, *, connections: int, timeout_s: float) -> None:
        """`timeout_s` is for each phase of an exchange; nothing connects before the first one."""
        self._new = partial(
            httpcore.AsyncConnectionPool,
            ssl_context=verify,
            max_connections=1,
            keepalive_expiry=IDLE_S,
            network_backend=Backend(),
        )
        self._lanes = [self._new() for _ in range(connections)]
        self._timeout = httpx.Timeout(timeout_s).as_dict()
        self._load = dict.fromkeys(self._lanes, 0)
        self._closing: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpcore's errors."""
        request.extensions.setdefault("timeout", self._timeout)
        lane = min(self._lanes, key=self._load.__getitem__)
        self._load[lane] += 1
        try:
            answer = await lane.handle_async_request(_inner(request))
        except BaseException:
            self._replace(lane)
            self._leave(lane)
            raise
        stream = _Occupying(answer, partial(self._end, lane))
        return httpx.Response(answer.status, headers=answer.headers, stream=stream)

    def _end(self, lane: httpcore.AsyncConnectionPool, body: "_Occupying") -> None:
        if not body.whole:
            self._replace(lane)
        self._leave(lane)

    def _replace(self, lane: httpcore.AsyncConnectionPool) -> None:
        """Use a lane no more whose exchange broke off.

        httpcore takes its connection for busy for ever where a cancellation and its own time limit
        meet; and there was but one connection in it, which is lost anyway.
        """
        if lane in self._lanes:
            fresh = self._new()
            self._lanes[self._lanes.index(lane)] = fresh
            self._load[fresh] = 0

    def _leave(self, lane: httpcore.AsyncConnectionPool) -> None:
        self._load[lane] -= 1
        if lane in self._lanes or self._load[lane]:
            return
        del self._load[lane]
        # In a task of its own, which no cancellation of a send can reach.
        closing = asyncio.create_task(lane.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        for lane in tuple(self._load):
            await lane.aclose()
        if self._closing:
            await asyncio.wait(self._closing)


class _Occupying(httpx.AsyncByteStream):
    """An answer's body, which keeps its lane occupied until it is closed."""

    def __init__(self, answer: httpcore.Response, end: Callable[["_Occupying"], None]) -> None:
        self._answer = answer
        self._end: Callable[[_Occupying], None] | None = end
        self.whole = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._answer.aiter_stream():
            yield chunk
        self.whole = True

    async def aclose(self) -> None:
        end, self._end = self._end, None
        try:
            await self._answer.aclose()
        finally:
            if end is not None:
                end(self)


def _inner(request: httpx.Request) -> httpcore.Request:
    url = request.url
    return httpcore.Request(
        request.method,
        httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=request.headers.raw,
        content=cast("httpx.AsyncByteStream", request.stream),
        extensions=request.extensions,
    )
