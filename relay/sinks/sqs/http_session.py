"""The AWS client's HTTP session, with the proxy that the config chooses for each URL.

The client itself knows one for each scheme; its requests also go to the servers that give
credentials, so that `no_proxy` may tell them apart.
"""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Self

from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import EndpointConnectionError, ProxyConnectionError

from relay.core.proxies import Proxies


def config(proxies: Proxies) -> Any:
    """Return the client config of an AWS session whose requests all go by these proxies."""
    return AioConfig(http_session_cls=partial(RoutedSession, proxies))


class RoutedSession:
    """One of the client's own sessions for each proxy, and one for direct requests."""

    def __init__(self, proxies: Proxies, /, **options: Any) -> None:
        self._proxies = proxies
        self._sessions = {
            url: AIOHTTPSession(
                **{**options, "proxies": {"http": url, "https": url} if url else {}}
            )
            for url in (None, *(each.reveal() for each in proxies.by_scheme.values()))
        }
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for session in self._sessions.values():
            await self._exit.enter_async_context(session)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._exit.aclose()

    async def send(self, request: Any) -> Any:
        proxy = self._proxies.url_for(request.url)
        try:
            return await self._sessions[proxy].send(request)
        except EndpointConnectionError as error:
            # Also where the proxy's name is unknown, or the way through it is closed.
            if proxy is None:
                raise
            raise ProxyConnectionError(proxy_url="***") from error
