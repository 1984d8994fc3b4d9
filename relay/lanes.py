"""How one sink's requests are spread over its connections."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import cast

import httpx


class Lanes(httpx.AsyncBaseTransport):
    """Spreads requests over pools of one connection each, the idlest first.

    One pool of all of them is less than half as fast: its work is quadratic in their number
    (outgoing-http.md, section 6), and it looks at each idle socket before every request.
    """

    def __init__(self, verify: ssl.SSLContext, *, connections: int, timeout_s: float) -> None:
        """`timeout_s` is for each phase of an exchange; nothing connects before the first one."""
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        self._new = partial(httpx.AsyncHTTPTransport, verify=verify, trust_env=False, limits=limits)
        self._lanes = [self._new() for _ in range(connections)]
        self._timeout = httpx.Timeout(timeout_s).as_dict()
        self._load = dict.fromkeys(self._lanes, 0)
        self._closing: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions.setdefault("timeout", self._timeout)
        lane = min(self._lanes, key=self._load.__getitem__)
        self._load[lane] += 1
        try:
            response = await lane.handle_async_request(request)
        except BaseException:
            self._replace(lane)
            self._leave(lane)
            raise
        response.stream = _Occupying(response, partial(self._end, lane))
        return response

    def _end(self, lane: httpx.AsyncHTTPTransport, body: "_Occupying") -> None:
        if not body.whole:
            self._replace(lane)
        self._leave(lane)

    def _replace(self, lane: httpx.AsyncHTTPTransport) -> None:
        """Use a lane no more whose exchange broke off.

        httpcore takes its connection for busy for ever where a cancellation and its own time limit
        meet; and there was but one connection in it, which is lost anyway.
        """
        if lane in self._lanes:
            fresh = self._new()
            self._lanes[self._lanes.index(lane)] = fresh
            self._load[fresh] = 0

    def _leave(self, lane: httpx.AsyncHTTPTransport) -> None:
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

    def __init__(self, response: httpx.Response, end: Callable[["_Occupying"], None]) -> None:
        self._stream = cast("httpx.AsyncByteStream", response.stream)
        self._end: Callable[[_Occupying], None] | None = end
        self.whole = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk
        self.whole = True

    async def aclose(self) -> None:
        end, self._end = self._end, None
        try:
            await self._stream.aclose()
        finally:
            if end is not None:
                end(self)
