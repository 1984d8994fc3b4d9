"""The `http` sink with tokens: what a failure to get one does, what is checked, and what shows."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import Misconfigured, SinkError
from relay.core.event import Event
from relay.outbound import tls
from tests.brokers.authority import Authority
from tests.conftest import NOW_MS, ManualClock
from tests.outbound.http.token_endpoint import TokenEndpoint, issuing, said
from tests.sinks.conformance import built
from tests.sinks.http.test_misfires import result
from tests.stub_server import Reply, StubServer


@pytest.fixture
async def endpoint() -> AsyncIterator[TokenEndpoint]:
    async with issuing() as endpoint:
        yield endpoint


@pytest.mark.parametrize("status", [400, 403, 500, 503])
async def test_a_token_endpoint_that_fails_kills_no_event_and_is_not_called_the_destination(
    destination: StubServer, endpoint: TokenEndpoint, lead: Event, status: int
) -> None:
    endpoint.server.reply = lambda _: Reply(status)
    sink = built("http", url=destination.url(), oauth2=endpoint.table())
    late_ms = NOW_MS + 30 * 86_400_000
    decision = await result(sink, lead, first_attempt_ms=NOW_MS, now_ms=late_ms)
    assert decision.result == ("parked" if status < 500 else "retry")
    assert not decision.counts
    assert decision.reason.startswith(f"no token from the token endpoint: {status}")
    assert destination.requests == []


async def test_a_check_asks_for_a_token_of_its_own(
    destination: StubServer, endpoint: TokenEndpoint
) -> None:
    destination.reply = endpoint.call
    sink = built("http", url=destination.url(), oauth2=endpoint.table())
    assert await sink.check() == "200 to OPTIONS"
    endpoint.server.reply = lambda _: said({"error": "invalid_client"}, 401)
    with pytest.raises(SinkError, match="no token from the token endpoint: 401 invalid_client"):
        await sink.check()
    await sink.close()


async def test_the_rendered_message_says_that_there_is_a_token_and_not_which(
    destination: StubServer, endpoint: TokenEndpoint, lead: Event, clock: ManualClock
) -> None:
    destination.reply = endpoint.call
    sink = built("http", clock, url=destination.url(), oauth2=endpoint.table())
    shown = sink.render(lead)
    await sink.send(lead)
    await sink.close()
    (request,) = destination.requests
    assert shown["headers"] == request.header | {"authorization": "***"}


@pytest.mark.parametrize(
    "table",
    [
        {"headers": {"Authorization": "marked"}},
        {"url": "https://a:marked@crm.example/"},
    ],
)
def test_a_token_beside_other_credentials_is_refused(table: dict[str, Any]) -> None:
    oauth2 = {"token_url": "https://idp.example", "client_id": "a", "client_secret": "b"}
    with pytest.raises(ValueError, match=r"^oauth2: (headers|url) sets authorization already$"):
        built("http", **({"url": "https://crm.example/", "oauth2": oauth2} | table))


async def test_events_at_once_have_one_new_token_after_a_401(
    destination: StubServer, endpoint: TokenEndpoint, lead: Event
) -> None:
    destination.reply = endpoint.call
    sink = built("http", url=destination.url(), oauth2=endpoint.table())
    await sink.send(lead)
    endpoint.valid.clear()
    await asyncio.gather(*(sink.send(lead) for _ in range(40)))
    await sink.close()
    assert endpoint.asked == 2


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


async def test_a_token_endpoint_of_the_same_authority_is_trusted_and_named_where_it_is_not(
    lead: Event, authority: Authority
) -> None:
    async with (
        StubServer(tls=authority.context()) as destination,
        StubServer(tls=authority.context()) as server,
    ):
        endpoint = TokenEndpoint(server)
        server.reply, destination.reply = endpoint.answer, endpoint.call
        table: dict[str, Any] = {"url": destination.url(), "oauth2": endpoint.table()}
        distrustful = built("http", **table)
        with pytest.raises(Misconfigured) as caught:
            await distrustful.send(lead)
        await distrustful.close()
        table["ca_file"] = str(authority.file)
        table["client_cert_file"] = str(authority.issue("client"))
        sink = built("http", **table)
        await sink.send(lead)
        await sink.close()
    begin = "no token from the token endpoint: the token endpoint's TLS certificate does not verify"
    assert caught.value.reason.startswith(begin)
    assert len(destination.requests) == 1


def test_a_service_beside_a_destination_is_verified_by_the_systems_authorities_too(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Authority(tmp_path / "system")
    monkeypatch.setenv("SSL_CERT_FILE", str(system.file))
    beside = tls.beside(tls.TlsSettings(name="a", type="http", ca_file=str(authority.file)))
    assert beside is not None
    trusted = {ssl.DER_cert_to_PEM_cert(der) for der in beside.get_ca_certs(binary_form=True)}
    assert {each.file.read_text(encoding="utf-8") for each in (authority, system)} <= trusted
    assert tls.beside(tls.TlsSettings(name="a", type="http")) is None
