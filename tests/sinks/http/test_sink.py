"""The `http` sink beyond what every sink does: its request, its signatures, TLS, its settings."""

import asyncio
import base64
import json
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import pytest
from freezegun import freeze_time
from msgspec.structs import replace
from standardwebhooks import Webhook, WebhookVerificationError

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.outbound.http.client import READ_BYTES
from relay.sinks.http.sink import HttpSink
from tests.brokers.authority import Authority
from tests.conftest import NOW_MS, ManualClock
from tests.sinks.conformance import built
from tests.stub_server import Reply, StubServer

OLD = "whsec_" + base64.b64encode(b"old key of 24 bytes or so").decode()
NEW = "whsec_" + base64.b64encode(b"new key of 24 bytes or so").decode()

Make = Callable[..., HttpSink]


@pytest.fixture
async def make(clock: ManualClock) -> AsyncIterator[Make]:
    made: list[HttpSink] = []

    def make(url: str, **table: object) -> HttpSink:
        made.append(built("http", clock, url=url, **table))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


async def test_the_request_carries_the_event_in_body_and_headers(
    destination: StubServer, make: Make, lead: Event
) -> None:
    await make(destination.url("/hook?a=b%20c")).send(replace(lead, received_ms=NOW_MS + 5))
    (request,) = destination.requests
    assert (request.method, request.target) == ("POST", "/hook?a=b%20c")
    assert request.body == lead.body
    assert request.header["host"] == f"127.0.0.1:{destination.port}"
    assert request.header["content-type"] == "application/json"
    assert request.header["user-agent"].startswith("relay/")
    assert request.header["webhook-id"] == "evt_lead"
    assert request.header["webhook-timestamp"] == str(NOW_MS // 1000)
    assert request.header["relay-event"] == "lead.captured"
    assert request.header["relay-source"] == "main"
    assert request.header["relay-received-at"] == "2026-03-02T09:30:00.005Z"
    assert "webhook-signature" not in request.header
    assert not [name for name in request.header if name.startswith("ce-")]


async def test_no_header_is_sent_twice(destination: StubServer, make: Make, lead: Event) -> None:
    own = {"Content-Type": "application/x-own", "USER-AGENT": "own", "x-own": "1"}
    sink = make(destination.url(), headers=own, signing_secrets=[OLD], format="cloudevents")
    await sink.send(lead)
    (request,) = destination.requests
    assert len(request.header) == len(request.headers)
    assert request.header["content-type"] == "application/x-own"
    assert request.header["user-agent"] == "own"


async def test_an_answer_is_handed_back(destination: StubServer, make: Make, lead: Event) -> None:
    destination.reply = lambda _: Reply(201, b'{"ok":true}')
    answer = await make(destination.url()).send(lead)
    assert (answer.status, answer.excerpt) == (201, '{"ok":true}')


async def test_an_endless_answer_counts_by_its_status(
    destination: StubServer, make: Make, lead: Event
) -> None:
    for status, is_taken in ((200, True), (503, False)):
        endless = Reply(status, b"x" * 4 * READ_BYTES, {"content-length": str(1 << 40)})
        destination.reply = lambda _, said=endless: said  # type: ignore[misc]
        (found,) = await asyncio.gather(make(destination.url()).send(lead), return_exceptions=True)
        assert isinstance(found, SinkResponse) is is_taken
        assert isinstance(found, SinkResponse | Temporary)
        assert found.status == status


async def test_an_encoded_id_can_be_decoded(
    destination: StubServer, make: Make, lead: Event
) -> None:
    event = replace(lead, id="evt 1%20 \N{SNOWMAN}", kind="vidéo")
    await make(destination.url(), signing_secrets=[OLD], format="cloudevents").send(event)
    header = destination.requests[0].header
    assert unquote(header["webhook-id"]) == unquote(header["ce-id"]) == event.id
    assert unquote(header["relay-event"]) == unquote(header["ce-type"]) == event.kind
    with freeze_time("2026-03-02T09:30:00Z"):
        Webhook(OLD).verify(destination.requests[0].body, header)


@pytest.mark.parametrize("format_", ["raw", "cloudevents"])
@pytest.mark.parametrize("secret", [OLD, NEW])
async def test_consumers_with_the_old_and_the_new_secret_verify(
    destination: StubServer, make: Make, lead: Event, secret: str, format_: str
) -> None:
    await make(destination.url(), signing_secrets=[OLD, NEW], format=format_).send(lead)
    (request,) = destination.requests
    with freeze_time("2026-03-02T09:30:00Z"):
        assert Webhook(secret).verify(request.body, request.header) == lead.document()
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(request.body + b" ", request.header)
        with pytest.raises(WebhookVerificationError):
            Webhook("whsec_" + "A" * 32).verify(request.body, request.header)


async def test_each_attempt_is_signed_anew_under_the_same_id(
    destination: StubServer, make: Make, lead: Event, clock: ManualClock
) -> None:
    sink = make(destination.url(), signing_secrets=[OLD])
    for _ in range(2):
        await sink.send(lead)
        clock.ms += 86_400_000
    first, second = (request.header for request in destination.requests)
    assert first["webhook-id"] == second["webhook-id"]
    assert int(second["webhook-timestamp"]) - int(first["webhook-timestamp"]) == 86_400
    assert first["webhook-signature"] != second["webhook-signature"]


async def test_cloudevents_keep_the_body_and_add_headers(
    destination: StubServer, make: Make, lead: Event
) -> None:
    await make(destination.url(), format="cloudevents").send(lead)
    (request,) = destination.requests
    assert request.body == lead.body
    assert request.header["content-type"] == "application/json"
    assert {name: value for name, value in request.headers if name.startswith("ce-")} == {
        "ce-specversion": "1.0",
        "ce-id": "evt_lead",
        "ce-source": "main",
        "ce-type": "lead.captured",
        "ce-time": lead.created_at,
        "ce-subject": lead.document()["data"]["video"]["id"],
    }


async def test_credentials_in_the_url_become_basic_authorization(
    destination: StubServer, make: Make, lead: Event
) -> None:
    url = destination.url("/").replace("://", "://us%20er:p%40ss@")
    await make(url).send(lead)
    expected = base64.b64encode(b"us er:p@ss").decode()
    assert destination.requests[0].header["authorization"] == f"Basic {expected}"


async def test_an_answer_that_repeats_our_headers_is_masked(
    destination: StubServer, make: Make, lead: Event
) -> None:
    destination.reply = lambda request: Reply(200, json.dumps(request.headers).encode())
    sink = make(destination.url(), headers={"authorization": "Bearer marked-token"})
    answer = await sink.send(lead)
    assert "marked" not in answer.excerpt
    assert "evt_lead" in answer.excerpt


@pytest.mark.parametrize("status", [200, 204, 400, 405, 406, 411, 415, 422, 501])
async def test_a_check_sends_options_and_accepts_any_answer_that_says_nothing_about_events(
    destination: StubServer, make: Make, status: int
) -> None:
    destination.reply = lambda _: Reply(status)
    found = await make(destination.url("/hook"), headers={"x-own": "1"}).check()
    assert found is not None
    assert found.startswith(f"{status} to OPTIONS")
    (request,) = destination.requests
    assert (request.method, request.target, request.body) == ("OPTIONS", "/hook", b"")
    assert request.header["x-own"] == "1"
    assert "webhook-id" not in request.header


@pytest.mark.parametrize("status", [302, 308, 401, 402, 403, 404, 407, 410, 421, 426])
async def test_a_check_reports_a_misconfiguration(
    destination: StubServer, make: Make, status: int
) -> None:
    destination.reply = lambda _: Reply(status)
    with pytest.raises(Misconfigured, match=f"{status} to OPTIONS"):
        await make(destination.url()).check()


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599, 999])
async def test_a_failed_response_does_not_pass_a_check(
    destination: StubServer, make: Make, status: int
) -> None:
    destination.reply = lambda _: Reply(status)
    with pytest.raises(Temporary, match=f"{status} to OPTIONS"):
        await make(destination.url()).check()


async def test_the_rendered_message_is_the_sent_one_with_secrets_masked(
    destination: StubServer, make: Make, lead: Event
) -> None:
    sink = make(destination.url(), headers={"X-Key": "marked"}, signing_secrets=[OLD])
    shown = sink.render(lead)
    await sink.send(lead)
    (request,) = destination.requests
    assert shown["method"] == request.method
    assert shown["body"].encode() == request.body
    masked = {"x-key": "***", "webhook-signature": "***"}
    assert {name.lower(): value for name, value in shown["headers"].items()} == (
        request.header | masked
    )


async def test_more_sends_than_connections_wait_their_turn(
    destination: StubServer, make: Make, lead: Event
) -> None:
    sink = make(destination.url())
    await asyncio.gather(*(sink.send(lead) for _ in range(40)))
    assert len(destination.requests) == 40
    assert destination.accepted <= 16


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


async def test_a_certificate_for_another_name_parks_the_sink(
    make: Make, lead: Event, authority: Authority
) -> None:
    async with StubServer(tls=authority.context()) as destination:
        sink = make(destination.url(host="localhost"), ca_file=str(authority.file))
        with pytest.raises(Misconfigured, match="does not verify: Hostname mismatch"):
            await sink.send(lead)
        assert destination.requests == []


async def test_a_destination_that_requires_our_certificate_gets_nothing_without_it(
    make: Make, lead: Event, authority: Authority
) -> None:
    async with StubServer(tls=authority.context()) as destination:
        # With TLS 1.3 its alert may be overtaken by the end of the connection.
        with pytest.raises(SinkError, match=r"does not accept our TLS certificate|connection"):
            await make(destination.url(), ca_file=str(authority.file)).send(lead)
        assert destination.requests == []


async def test_a_client_certificate_that_is_not_trusted_parks_the_sink(
    make: Make, lead: Event, authority: Authority, tmp_path: Path
) -> None:
    # A plain socket, because asyncio's server hangs up without saying why.
    context = authority.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def shake_hands(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)

    client = Authority(tmp_path / "stranger").issue("client")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        destination = asyncio.create_task(asyncio.to_thread(shake_hands, listener))
        sink = make(
            f"https://127.0.0.1:{listener.getsockname()[1]}/",
            ca_file=str(authority.file),
            client_cert_file=str(client),
        )
        with pytest.raises(Misconfigured, match="does not accept our TLS certificate"):
            await sink.send(lead)
        await destination


async def test_a_destination_that_speaks_no_tls_is_temporary(make: Make, lead: Event) -> None:
    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(Temporary, match="the destination does not speak TLS at this port"):
            await make(f"https://{host}:{port}/").send(lead)


def test_a_key_under_a_passphrase_is_refused_without_asking(
    authority: Authority, tmp_path: Path
) -> None:
    client, key = str(authority.issue("client")), str(tmp_path / "locked.key")
    lock = ("openssl", "pkey", "-in", client, "-aes256", "-passout", "pass:secret", "-out", key)
    subprocess.run(lock, check=True, capture_output=True)
    with pytest.raises(ValueError, match="client_key_file: "):
        built("http", url="https://crm.example/", client_cert_file=client, client_key_file=key)


def test_a_pair_that_does_not_fit_is_refused(authority: Authority) -> None:
    client, other = str(authority.issue("client")), str(authority.issue("other"))
    with pytest.raises(ValueError, match="do not fit"):
        built("http", url="https://crm.example/", client_cert_file=client, client_key_file=other)
