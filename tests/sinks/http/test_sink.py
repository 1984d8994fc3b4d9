"""The `http` sink beyond what every sink does: its request, its signatures, TLS, its settings."""

import asyncio
import base64
import json
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
from freezegun import freeze_time
from msgspec.structs import replace
from standardwebhooks import Webhook, WebhookVerificationError

from relay.core import config_values
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.outbound.http.client import READ_BYTES
from relay.sinks.http import sink as http
from relay.sinks.http.sink import HttpSink
from tests.conftest import NOW_MS, ManualClock
from tests.stub_server import Reply, StubServer

OLD = "whsec_" + base64.b64encode(b"old key of 24 bytes or so").decode()
NEW = "whsec_" + base64.b64encode(b"new key of 24 bytes or so").decode()

Make = Callable[..., HttpSink]


def decoded(**table: object) -> http.Settings:
    full = {"name": "crm", "type": "http", **table}
    return msgspec.convert(full, http.Settings, dec_hook=config_values.decode)


@pytest.fixture
async def make(clock: ManualClock) -> AsyncIterator[Make]:
    made: list[HttpSink] = []

    def make(url: str, **table: object) -> HttpSink:
        made.append(http.build(decoded(url=url, **table), clock))
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


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"url": "ftp://crm.example/"}, "url: expected http"),
        ({"url": "crm.example/marked"}, "url: expected http"),
        ({"url": "https://"}, "url: expected http"),
        ({"url": "http:///marked"}, "url: expected http"),
        (
            {"url": "http://crm.example:99999/marked"},
            "url: expected http:// or",
        ),
        ({"url": "http://[marked/"}, "url: expected http:// or https:// and a host"),
        ({"url": "http://1.2.3.4.5/marked"}, "url: the host is neither a name nor an IPv4"),
        ({"url": "http://crm.example/marked\n"}, "url: expected http:// or https:// and a host"),
        ({"headers": {"x marked": "1"}}, r"headers.x marked: .*name"),
        ({"headers": {"": "1"}}, r"headers.: .*name"),
        ({"headers": {"x-own": "marked\r\nx: y"}}, r"headers.x-own: .*ASCII"),
        ({"headers": {"x-own": "marked\n"}}, r"headers.x-own: .*ASCII"),
        ({"headers": {"x-own": " marked"}}, r"headers.x-own: .*blanks"),
        ({"headers": {"x-own": "mörked"}}, r"headers.x-own: .*ASCII"),
        ({"headers": {"X-Own": "marked", "x-own": "2"}}, r"headers.x-own: duplicate"),
        ({"headers": {"Webhook-Id": "marked"}}, r"headers.Webhook-Id: .*relay itself"),
        ({"headers": {"CE-type": "marked"}}, r"headers.CE-type: .*relay itself"),
        ({"headers": {"relay-event": "marked"}}, r"headers.relay-event: .*relay itself"),
        ({"headers": {"Content-Length": "1"}}, r"headers.Content-Length: .*relay itself"),
        ({"headers": {"HOST": "marked"}}, r"headers.HOST: .*relay itself"),
        ({"headers": {"transfer-encoding": "chunked"}}, r"transfer-encoding: .*relay itself"),
        ({"signing_secrets": [OLD, "whsec_marked"]}, r"signing_secrets\[1\]: "),
        ({"ca_file": "no-such-file"}, "ca_file: cannot be read: No such file"),
        ({"ca_file": __file__}, "ca_file: holds no usable PEM"),
        ({"client_cert_file": "no-such-file"}, "client_cert_file.*: cannot be read: No such"),
        ({"client_cert_file": __file__}, "client_cert_file.*: holds no usable PEM"),
        ({"client_key_file": __file__}, "client_key_file: needs client_cert_file"),
        (
            {"url": "http://a:marked@crm.example/", "headers": {"Authorization": "marked"}},
            "headers.authorization: url carries",
        ),
    ],
)
def test_a_bad_setting_is_named_and_its_value_is_not(
    table: dict[str, object], expected: str, clock: ManualClock
) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        http.build(decoded(**{"url": "https://crm.example/", **table}), clock)
    assert "marked" not in str(caught.value).replace("headers.x marked", "")


@dataclass(frozen=True)
class Certificates:
    """Paths of a CA, a server's and a client's pair, and a client's pair under a passphrase."""

    folder: Path

    def __getattr__(self, name: str) -> str:
        return str(self.folder / name.replace("_", "."))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(("openssl", *arguments), cwd=folder, check=True, capture_output=True)

    def pair(name: str, *arguments: str) -> None:
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2")
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        openssl("req", "-x509", *key, *files, "-subj", f"/CN={name}", *arguments)

    pair("ca", "-nodes", "-addext", "keyUsage=keyCertSign")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=CA:FALSE")
    pair("server", "-nodes", *signed, "-addext", "subjectAltName=IP:127.0.0.1")
    pair("client", "-nodes", *signed)
    pair("stranger", "-nodes")
    pair("locked", "-passout", "pass:secret", *signed)
    return Certificates(folder)


@pytest.fixture
async def tls_destination(certificates: Certificates) -> AsyncIterator[StubServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server_pem, certificates.server_key)
    async with StubServer(tls=context) as destination:
        yield destination


@pytest.fixture
async def strict_destination(certificates: Certificates) -> AsyncIterator[StubServer]:
    async with StubServer(tls=strict(certificates)) as destination:
        yield destination


def strict(certificates: Certificates) -> ssl.SSLContext:
    """Make a server's context that wants a client certificate of our CA."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.ca_pem)
    context.load_cert_chain(certificates.server_pem, certificates.server_key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_an_own_ca_verifies_the_destination(
    tls_destination: StubServer, make: Make, lead: Event, certificates: Certificates
) -> None:
    await make(tls_destination.url(), ca_file=certificates.ca_pem).send(lead)
    assert len(tls_destination.requests) == 1


async def test_an_untrusted_certificate_parks_the_sink(
    tls_destination: StubServer, make: Make, lead: Event
) -> None:
    with pytest.raises(Misconfigured, match="certificate does not verify"):
        await make(tls_destination.url()).send(lead)
    assert tls_destination.requests == []


async def test_a_certificate_for_another_name_parks_the_sink(
    tls_destination: StubServer, make: Make, lead: Event, certificates: Certificates
) -> None:
    with pytest.raises(Misconfigured, match="does not verify: Hostname mismatch"):
        await make(tls_destination.url(host="localhost"), ca_file=certificates.ca_pem).send(lead)
    assert tls_destination.requests == []


async def test_a_destination_that_requires_a_client_certificate_gets_it(
    strict_destination: StubServer, make: Make, lead: Event, certificates: Certificates
) -> None:
    sink = make(
        strict_destination.url(),
        ca_file=certificates.ca_pem,
        client_cert_file=certificates.client_pem,
        client_key_file=certificates.client_key,
    )
    await sink.send(lead)
    assert len(strict_destination.requests) == 1


async def test_a_destination_that_requires_our_certificate_gets_nothing_without_it(
    strict_destination: StubServer, make: Make, lead: Event, certificates: Certificates
) -> None:
    # With TLS 1.3 its alert may be overtaken by the end of the connection.
    with pytest.raises(SinkError, match=r"does not accept our TLS certificate|connection"):
        await make(strict_destination.url(), ca_file=certificates.ca_pem).send(lead)
    assert strict_destination.requests == []


async def test_a_client_certificate_that_is_not_trusted_parks_the_sink(
    make: Make, lead: Event, certificates: Certificates
) -> None:
    # A plain socket, because asyncio's server hangs up without saying why.
    context = strict(certificates)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def shake_hands(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        destination = asyncio.create_task(asyncio.to_thread(shake_hands, listener))
        sink = make(
            f"https://127.0.0.1:{listener.getsockname()[1]}/",
            ca_file=certificates.ca_pem,
            client_cert_file=certificates.stranger_pem,
            client_key_file=certificates.stranger_key,
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


def test_files_for_tls_ask_for_https(certificates: Certificates, clock: ManualClock) -> None:
    table = {"url": "http://crm.example/", "ca_file": certificates.ca_pem}
    with pytest.raises(ValueError, match="url: expected https://"):
        http.build(decoded(**table), clock)


def test_a_key_under_a_passphrase_is_refused_without_asking(
    certificates: Certificates, clock: ManualClock
) -> None:
    table = {
        "url": "https://crm.example/",
        "client_cert_file": certificates.locked_pem,
        "client_key_file": certificates.locked_key,
    }
    with pytest.raises(ValueError, match="client_key_file: "):
        http.build(decoded(**table), clock)


def test_a_pair_that_does_not_fit_is_refused(
    certificates: Certificates, clock: ManualClock
) -> None:
    table = {
        "url": "https://crm.example/",
        "client_cert_file": certificates.client_pem,
        "client_key_file": certificates.server_key,
    }
    with pytest.raises(ValueError, match="do not fit"):
        http.build(decoded(**table), clock)
