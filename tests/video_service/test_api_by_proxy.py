"""The sender's API is asked through a real proxy, whose failures are told from the API's."""

import ssl
from pathlib import Path

import pytest

from relay.core.api_settings import ApiSettings
from relay.core.config_values import Secret
from relay.core.proxies import OutboundSettings
from relay.core.request_budget import ProcessBudgets
from relay.video_service.api.budget import Budget
from relay.video_service.api.client import Api
from relay.video_service.api.errors import Reason, ServiceApiError
from relay.video_service.api.exchange import Exchange
from tests.brokers.authority import Authority
from tests.brokers.tinyproxy import TinyProxy
from tests.ports import free_port
from tests.sinks.test_proxies import started
from tests.stub_server import Reply, StubServer

pytestmark = pytest.mark.servers


async def reason(base_url: str, proxy_url: str, no_proxy: str = "") -> Reason | None:
    """Ask for the videos; return why there is no answer, if there is none."""
    outbound = OutboundSettings(proxy_url=Secret(proxy_url), no_proxy=no_proxy)
    settings = ApiSettings(base_url=base_url, key=Secret("a-key-of-the-tests"), outbound=outbound)

    async def sleep(_: float) -> None:
        """Try again at once."""

    exchange = Exchange(settings, budget=Budget(settings.key, ProcessBudgets()), sleep=sleep)
    async with Api(settings, exchange=exchange) as api:
        try:
            await api.check_analytics()
        except ServiceApiError as error:
            return error.reason
    return None


@pytest.mark.parametrize("asks", [False, True], ids=["open", "with credentials"])
async def test_the_api_is_asked_through_the_proxy(tmp_path: Path, *, asks: bool) -> None:
    async with StubServer() as server:
        server.reply = lambda _: Reply(body=b"{}")
        for proxy in started(TinyProxy(tmp_path, asks=asks)):
            assert await reason(server.url(""), proxy.url) is None
            assert proxy.requests() == [f"GET {server.url('/v1/analytics/live')}"]
            assert await reason(server.url(""), proxy.url, no_proxy="127.0.0.1") is None
            assert len(proxy.requests()) == 1


async def test_a_tunnel_leads_to_the_apis_own_certificate(tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(Authority(tmp_path / "authority").issue("server"))
    async with StubServer(tls=context) as server:
        for proxy in started(TinyProxy(tmp_path)):
            assert await reason(server.url(""), proxy.url) == "TLS failed"
            assert set(proxy.requests()) == {f"CONNECT 127.0.0.1:{server.port}"}


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_the_proxys_failures_are_not_the_apis(tmp_path: Path, scheme: str) -> None:
    base_url = f"{scheme}://127.0.0.1:{free_port()}"
    assert await reason(base_url, f"http://127.0.0.1:{free_port()}") == "proxy failed"
    for proxy in started(TinyProxy(tmp_path, asks=True)):
        assert await reason(base_url, proxy.bare_url) == "proxy failed"


async def test_a_destination_that_the_proxy_does_not_reach_is_the_proxys_failure(
    tmp_path: Path,
) -> None:
    for proxy in started(TinyProxy(tmp_path)):
        assert await reason(f"https://127.0.0.1:{free_port()}", proxy.url) == "proxy failed"
