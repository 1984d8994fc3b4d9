"""Sinks that speak HTTP reach their destinations through a real proxy, and name its failures."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import Sink
from tests.brokers.authority import Authority
from tests.brokers.moto_sqs import REGION, MotoSqs
from tests.brokers.tinyproxy import PASSWORD, TinyProxy
from tests.ports import free_port
from tests.sinks.conformance import built
from tests.sinks.servers import shared
from tests.stub_server import Reply, StubServer

pytestmark = pytest.mark.servers


class Place(NamedTuple):
    """A destination, over plain http or in a tunnel, and the keys of an `http` sink for it."""

    server: StubServer
    keys: dict[str, Any]

    @property
    def target(self) -> str:
        """Its part of the requests that the proxy gets."""
        authority = f"127.0.0.1:{self.server.port}"
        return (
            f"POST http://{authority}/a%2Fb/../hook?x=%41"
            if not self.is_tls
            else f"CONNECT {authority}"
        )

    @property
    def is_tls(self) -> bool:
        return str(self.keys["url"]).startswith("https")


@pytest.fixture(params=["http", "https"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    keys: dict[str, Any] = {}
    server = StubServer()
    if request.param == "https":
        authority = Authority(tmp_path / "authority")
        server = StubServer(tls=authority.context())
        pair = str(authority.issue("client"))
        keys = {"ca_file": str(authority.file), "client_cert_file": pair}
    async with server:
        yield Place(server, {"url": server.url("/a%2Fb/../hook?x=%41"), **keys})


@pytest.fixture(params=[False, True], ids=["open", "with credentials"])
def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TinyProxy]:
    yield from started(TinyProxy(tmp_path, asks=request.param))


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[TinyProxy]:
    yield from started(TinyProxy(tmp_path, asks=True))


def started(proxy: TinyProxy) -> Iterator[TinyProxy]:
    proxy.start()
    yield proxy
    proxy.stop()


async def failures(sink: Sink, event: Event) -> list[SinkError]:
    """Send, check and close; return both failures."""
    found = []
    for trial in (sink.send(event), sink.check()):
        with pytest.raises(SinkError) as caught:
            await trial
        found.append(caught.value)
    await sink.close()
    return found


async def test_an_event_and_a_check_go_through_the_proxy(
    proxy: TinyProxy, place: Place, lead: Event
) -> None:
    sink = built("http", **place.keys, proxy_url=proxy.url)
    for _ in range(3):
        await sink.send(lead)
    assert await sink.check() == "200 to OPTIONS"
    await sink.close()
    methods = [each.method for each in place.server.requests]
    assert methods == ["POST", "POST", "POST", "OPTIONS"]
    assert {each.target for each in place.server.requests} == {"/a%2Fb/../hook?x=%41"}
    assert place.server.requests[0].body == lead.body
    assert not any("proxy" in name for each in place.server.requests for name in each.header)
    assert place.target in proxy.requests()


async def test_a_tunnel_serves_one_event_after_another(
    proxy: TinyProxy, place: Place, lead: Event
) -> None:
    sink = built("http", **place.keys, proxy_url=proxy.url)
    for _ in range(5):
        await sink.send(lead)
    await sink.close()
    assert len(proxy.requests()) == (1 if place.is_tls else 5)


async def test_an_exception_is_reached_directly(
    proxy: TinyProxy, place: Place, lead: Event
) -> None:
    general = {"proxy_url": proxy.url, "no_proxy": f"127.0.0.0/8:{place.server.port}"}
    sink = built("http", **place.keys, outbound=general)
    await sink.send(lead)
    await sink.close()
    assert len(place.server.requests) == 1
    assert proxy.requests() == []


@pytest.mark.parametrize("credentials", ["", "relay:wrong@", "other:marked-password@"])
async def test_a_proxy_that_asks_for_other_credentials_parks_the_sink(
    asking: TinyProxy, place: Place, lead: Event, credentials: str
) -> None:
    url = f"http://{credentials}127.0.0.1:{asking.port}"
    for error in await failures(built("http", **place.keys, proxy_url=url), lead):
        assert (type(error), error.unsent, error.status) == (Misconfigured, True, None)
        status = 401 if credentials else 407
        assert error.reason == (
            f"the proxy answers {status}: it requires credentials, or other ones than those in "
            "proxy_url"
        )
    assert place.server.accepted == 0


async def test_a_proxy_that_is_not_there_is_named_and_the_destination_is_not(
    place: Place, lead: Event
) -> None:
    url = f"http://relay:{PASSWORD}@127.0.0.1:{free_port()}"
    for error in await failures(built("http", **place.keys, proxy_url=url), lead):
        assert (type(error), error.unsent) == (Temporary, True)
        assert error.reason == "the proxy: connection refused"
    url = f"http://relay:{PASSWORD}@no-such-proxy.invalid:3128"
    for error in await failures(built("http", **place.keys, proxy_url=url), lead):
        assert (type(error), error.unsent) == (Temporary, True)
        assert error.reason == "the proxy: name not found"
    assert place.server.accepted == 0


async def test_a_destination_that_the_proxy_does_not_reach_throttles_the_sink(
    proxy: TinyProxy, place: Place, lead: Event
) -> None:
    await place.server.stop()
    for error in await failures(built("http", **place.keys, proxy_url=proxy.url), lead):
        assert (type(error), error.unsent) == (Temporary, True)
        assert error.reason == (
            "the proxy answers 500: it has a fault, or cannot reach the destination"
        )


async def test_a_destination_that_the_proxys_rules_forbid_parks_the_sink(
    tmp_path: Path, place: Place, lead: Event
) -> None:
    (tmp_path / "rules").write_text("allowed.example\n")
    rules = f'Filter "{tmp_path}/rules"\nFilterDefaultDeny Yes'
    for proxy in started(TinyProxy(tmp_path, more=rules)):
        sink = built("http", **place.keys, proxy_url=proxy.url)
        for error in await failures(sink, lead):
            assert (type(error), error.unsent) == (Misconfigured, True)
            assert error.reason == (
                "the proxy answers 403: its rules do not allow this destination"
            )


@pytest.mark.parametrize(
    ("status", "kind"), [(403, Misconfigured), (407, Misconfigured), (503, Temporary)]
)
async def test_what_the_destination_answers_in_a_tunnel_is_its_own(
    proxy: TinyProxy, tmp_path: Path, lead: Event, status: int, kind: type[SinkError]
) -> None:
    authority = Authority(tmp_path / "authority")
    async with StubServer(tls=authority.context()) as server:
        server.reply = lambda _: Reply(status, headers={"server": "tinyproxy/1.11"})
        files: dict[str, Any] = {
            "ca_file": str(authority.file),
            "client_cert_file": str(authority.issue("client")),
        }
        sink = built("http", url=server.url(), **files, proxy_url=proxy.url)
        for error in await failures(sink, lead):
            assert (type(error), error.unsent, error.status) == (kind, False, status)


async def test_an_answer_that_was_passed_on_over_plain_http_is_the_destinations(
    proxy: TinyProxy, lead: Event
) -> None:
    async with StubServer() as server:
        server.reply = lambda _: Reply(503, headers={"server": "tinyproxy/1.11"})
        sink = built("http", url=server.url(), proxy_url=proxy.url)
        for error in await failures(sink, lead):
            assert (type(error), error.unsent, error.status) == (Temporary, False, 503)


async def test_a_certificate_that_does_not_verify_is_the_destinations(
    proxy: TinyProxy, tmp_path: Path, lead: Event
) -> None:
    async with StubServer(tls=Authority(tmp_path / "authority").context()) as server:
        for error in await failures(built("http", url=server.url(), proxy_url=proxy.url), lead):
            assert (type(error), error.unsent) == (Misconfigured, False)
            assert error.reason.startswith("the destination's TLS certificate does not verify: ")


async def test_slack_goes_through_the_proxy(proxy: TinyProxy, lead: Event) -> None:
    async with StubServer() as server:
        server.reply = lambda request: (
            Reply(body=b"ok") if len(request.body) > 2 else Reply(400, b"no_text")
        )
        sink = built("slack", url=server.url("/services/T0/B0/x"), proxy_url=proxy.url)
        await sink.send(lead)
        await sink.check()
        await sink.close()
        posts = [f"POST {server.url('/services/T0/B0/x')}"] * 2
        assert proxy.requests() == posts


def queue(moto: MotoSqs, **table: Any) -> Any:
    keys: dict[str, Any] = {
        "aws_access_key_id": "marked-key",
        "aws_secret_access_key": "marked-secret",
    }
    url = moto.put_queue(f"relay-{free_port()}")
    return built("sqs", queue_url=url, endpoint_url=moto.url, region=REGION, **keys, **table)


@pytest.fixture
def moto() -> MotoSqs:
    return shared(MotoSqs)


async def test_sqs_goes_through_the_proxy(moto: MotoSqs, proxy: TinyProxy, lead: Event) -> None:
    sink = queue(moto, outbound={"proxy_url": proxy.url})
    assert isinstance(await sink.send(lead), SinkResponse)
    await sink.check()
    await sink.close()
    assert set(proxy.requests()) == {f"POST {moto.url}/"}
    assert len(proxy.requests()) == 2


@pytest.mark.parametrize("by", ["no_proxy", "direct"])
async def test_sqs_is_reached_directly_where_the_config_says_so(
    moto: MotoSqs, proxy: TinyProxy, lead: Event, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    general = {"proxy_url": proxy.url if by == "no_proxy" else "direct", "no_proxy": "127.0.0.1"}
    sink = queue(moto, outbound=general)
    await sink.send(lead)
    await sink.close()
    assert proxy.requests() == []


async def test_without_settings_sqs_takes_the_proxy_of_the_environment_as_before(
    moto: MotoSqs, proxy: TinyProxy, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    sink = queue(moto)
    await sink.send(lead)
    await sink.close()
    assert proxy.requests() == [f"POST {moto.url}/"]


@pytest.mark.parametrize("adopted", [True, False], ids=["environment", "config"])
async def test_sqs_names_the_proxys_failures(
    moto: MotoSqs, lead: Event, monkeypatch: pytest.MonkeyPatch, *, adopted: bool
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("HTTP_PROXY", url if adopted else "")
    for error in await failures(queue(moto, **({} if adopted else {"proxy_url": url})), lead):
        assert (type(error), error.unsent) == (Temporary, True)
        assert error.reason == "the proxy: connection refused"


async def test_sqs_names_what_a_proxy_answers_to_connect(asking: TinyProxy, lead: Event) -> None:
    keys: dict[str, Any] = {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        "region": REGION,
    }
    url = "https://sqs.eu-west-1.amazonaws.com/1/q"
    sink = built("sqs", queue_url=url, **keys, proxy_url=asking.bare_url)
    for error in await failures(sink, lead):
        assert (type(error), error.unsent) == (Misconfigured, True)
        assert error.reason.startswith("the proxy answers 407: it requires credentials")
    unknown = built("sqs", queue_url=url, **keys, proxy_url="http://no-such-proxy.invalid:3128")
    for error in await failures(unknown, lead):
        assert (type(error), error.unsent) == (Temporary, True)
        assert error.reason == "the proxy: name not found"


LOGIN = '{"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}'


async def test_the_token_of_pubsub_is_asked_for_through_the_proxy(
    asking: TinyProxy, lead: Event
) -> None:
    table: dict[str, Any] = {"project": "my-project-123", "credentials": LOGIN}
    sink = built("pubsub", **table, proxy_url=asking.bare_url)
    for error in await failures(sink, lead):
        assert (type(error), error.unsent) == (Misconfigured, True)
        assert re.fullmatch(
            r"no token: oauth2.googleapis.com: the proxy answers 407: .*", error.reason
        )
    assert set(asking.requests()) == {"CONNECT oauth2.googleapis.com:443"}


async def test_a_token_of_oauth2_is_asked_for_through_the_proxy(
    asking: TinyProxy, lead: Event
) -> None:
    async with StubServer() as server:
        server.reply = lambda request: (
            Reply(body=b'{"access_token": "a-token", "expires_in": 3600}')
            if request.target.endswith("/token")
            else Reply()
        )
        keys: dict[str, Any] = {
            "url": server.url("/hook"),
            "oauth2": {"token_url": server.url("/token"), "client_id": "a", "client_secret": "b"},
        }
        sink = built("http", **keys, proxy_url=asking.url)
        await sink.send(lead)
        await sink.close()
        assert asking.requests() == [f"POST {server.url('/token')}", f"POST {server.url('/hook')}"]
        for error in await failures(built("http", **keys, proxy_url=asking.bare_url), lead):
            assert (type(error), error.unsent) == (Misconfigured, True)
            assert error.reason.startswith(
                "no token from the token endpoint: the proxy answers 407: it requires credentials"
            )
