"""How one sink's requests are spread over its connections."""

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
        self._lanes = [
            httpx.AsyncHTTPTransport(verify=verify, trust_env=False, limits=limits)
            for _ in range(connections)
        ]
        self._timeout = httpx.Timeout(timeout_s).as_dict()
        self._load = dict.fromkeys(self._lanes, 0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions.setdefault("timeout", self._timeout)
        lane = min(self._lanes, key=self._load.__getitem__)
        self._load[lane] += 1
        try:
            response = await lane.handle_async_request(request)
        except BaseException:
            self._load[lane] -= 1
            raise
        response.stream = _Occupying(response, partial(self._leave, lane))
        return response

    def _leave(self, lane: httpx.AsyncHTTPTransport) -> None:
        self._load[lane] -= 1

    async def aclose(self) -> None:
        for lane in self._lanes:
            await lane.aclose()


class _Occupying(httpx.AsyncByteStream):
    """An answer's body, which keeps its lane occupied until it is closed."""

    def __init__(self, response: httpx.Response, leave: Callable[[], None]) -> None:
        self._stream = cast("httpx.AsyncByteStream", response.stream)
        self._leave: Callable[[], None] | None = leave

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        if self._leave is not None:
            self._leave()
            self._leave = None
        await self._stream.aclose()
