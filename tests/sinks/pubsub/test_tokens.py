"""Google's tokens: whence they come, who shares them, when they are renewed, how they fail."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from google.auth import jwt
from google.auth.compute_engine import _metadata
from google.oauth2 import credentials as authorized_user

from relay.core.config_values import Duration
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.core.proxies import Proxies
from relay.outbound.http.tokens import REFRESH_EARLY_S, RETRY_S
from relay.sinks.pubsub import credentials as google_credentials
from relay.sinks.pubsub import sink as pubsub
from relay.sinks.pubsub.api import SCOPE
from relay.sinks.pubsub.credentials import Load
from relay.sinks.pubsub.tokens import GoogleTokens
from tests.brokers.pubsub_double import PubsubDouble, said
from tests.conftest import ManualClock
from tests.ports import free_port
from tests.sinks.pubsub.harness import PubsubHarness, key_pair, service_account
from tests.sinks.test_conformance import told
from tests.stub_server import Reply, StubServer, until

LOGIN = {
    "type": "authorized_user",
    "client_id": "marked-client",
    "client_secret": "marked-client-secret",
    "refresh_token": "good-login",
}


class Google:
    """The double's token and metadata servers."""

    def __init__(self) -> None:
        self.double = PubsubDouble(certificate=key_pair()[1])
        self.destination = StubServer()
        self.clock = ManualClock(time.time_ns() // 1_000_000)

    def tokens(self, load: Load, *, timeout: str = "5s") -> GoogleTokens:
        transport = google_credentials.Transport(Duration.parse(timeout), Proxies())
        return GoogleTokens(load, self.clock, scope=SCOPE, transport=transport)

    def login(self, *, timeout: str = "5s", **changed: str) -> GoogleTokens:
        return self.tokens(
            google_credentials.from_json(json.dumps(LOGIN | changed)), timeout=timeout
        )

    def later(self, seconds: float) -> None:
        self.clock.ms += int(seconds * 1000)

    @property
    def asked(self) -> int:
        return len(self.destination.requests)


@pytest.fixture
async def google(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Google]:
    google = Google()
    async with google.destination:
        google.destination.reply = google.double.answer
        monkeypatch.setattr(
            authorized_user, "_GOOGLE_OAUTH2_TOKEN_ENDPOINT", google.destination.url("/token")
        )
        yield google


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which Google's usual places are empty."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{free_port()}")
    monkeypatch.setattr(_metadata, "detect_gce_residency_linux", lambda: False)


@pytest.fixture
def metadata(nowhere: None, google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of Google's."""
    address = f"127.0.0.1:{google.destination.port}"
    monkeypatch.setenv("GCE_METADATA_IP", address)
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", address)


async def bearer(tokens: GoogleTokens) -> str:
    return (await tokens.headers())["authorization"].removeprefix("Bearer ")


async def failure(tokens: GoogleTokens) -> SinkError:
    with pytest.raises(SinkError) as caught:
        await tokens.headers()
    return caught.value


async def test_a_service_account_signs_its_tokens_itself(google: Google) -> None:
    tokens = google.tokens(google_credentials.from_json(service_account()))
    token = await bearer(tokens)
    assert await bearer(tokens) == token
    await tokens.close()
    claims: Any = jwt.decode(token, certs=key_pair()[1])
    assert claims["scope"] == SCOPE
    assert google.asked == 0


async def test_all_who_wait_share_one_token(google: Google) -> None:
    tokens = google.login()
    found = await asyncio.gather(*(bearer(tokens) for _ in range(50)))
    await tokens.close()
    assert set(found) == set(google.double.issued)
    assert google.asked == 1


async def test_nothing_else_waits_for_a_token(google: Google) -> None:
    google.destination.reply = lambda _: None
    tokens = google.login()
    waiting = asyncio.create_task(tokens.headers())
    await until(lambda: google.asked == 1, what="the request for a token")
    started_s = time.monotonic()
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert time.monotonic() - started_s < 1
    waiting.cancel()
    await tokens.close()


async def test_a_token_is_renewed_before_it_ends_while_the_old_one_serves(google: Google) -> None:
    tokens = google.login()
    first = await bearer(tokens)
    google.later(google.double.lasts_s - REFRESH_EARLY_S - 5)
    assert await bearer(tokens) == first
    assert google.asked == 1
    google.later(10)
    assert await bearer(tokens) == first
    await until(lambda: len(google.double.issued) == 2, what="the second token")
    await until(lambda: tokens._fetching is None, what="the end of the renewal")
    assert await bearer(tokens) == google.double.issued[1]
    assert google.asked == 2
    await tokens.close()


async def test_an_expired_token_is_no_longer_used(google: Google) -> None:
    tokens = google.login()
    await tokens.headers()
    google.later(google.double.lasts_s + 1)
    assert await bearer(tokens) == google.double.issued[1]
    await tokens.close()


async def test_a_token_of_a_short_life_is_not_asked_for_all_the_time(google: Google) -> None:
    google.double.lasts_s = 100
    tokens = google.login()
    for _ in range(40):
        await tokens.headers()
        google.later(1)
    assert google.asked == 1
    await tokens.close()


async def test_a_renewal_that_fails_spends_the_old_token_first(google: Google) -> None:
    tokens = google.login()
    first = await bearer(tokens)
    google.destination.reply = lambda _: Reply(503)
    google.later(google.double.lasts_s - REFRESH_EARLY_S + 1)
    for _ in range(3):
        assert await bearer(tokens) == first
        await until(lambda: tokens._fetching is None, what="the end of the renewal")
    assert google.asked == 2
    google.later(RETRY_S + 1)
    assert await bearer(tokens) == first
    await until(lambda: google.asked == 3, what="one more try")
    await until(lambda: tokens._fetching is None, what="its end")
    google.later(REFRESH_EARLY_S)
    assert type(await failure(tokens)) is Temporary
    google.destination.reply = google.double.answer
    assert await bearer(tokens) == google.double.issued[-1]
    await tokens.close()


@pytest.mark.parametrize("token", ["marked\nx: y", "marked\r", "m\u00e4rked", "\0marked"])
async def test_a_token_that_fits_into_no_header_is_no_bug(google: Google, token: str) -> None:
    answer = {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}
    google.destination.reply = lambda _: said(answer)
    tokens = google.login()
    error = await failure(tokens)
    await tokens.close()
    assert (type(error), error.reason) == (
        Temporary,
        "no token: an answer that holds no usable token",
    )


CASES: list[tuple[Callable[[Any], Reply], type[SinkError], str]] = [
    (lambda r: said({"error": "invalid_grant", "echo": told_of(r)}, 400), Misconfigured, "revoked"),
    (lambda r: said({"error": "invalid_client"}, 401), Misconfigured, "its secret is wrong"),
    (lambda r: said({"error": told_of(r)}, 400), Misconfigured, "are not accepted"),
    (lambda r: Reply(404, told_of(r).encode()), Misconfigured, "are not accepted"),
    (lambda r: said({"answer": told_of(r)}), Misconfigured, "are not accepted"),
    (lambda r: Reply(200, told_of(r).encode()), Temporary, "cannot be understood"),
    (lambda r: Reply(503, told_of(r).encode()), Temporary, "127.0.0.1 answers 503"),
    (lambda r: Reply(429, told_of(r).encode()), Temporary, "127.0.0.1 answers 429"),
]


def told_of(request: Any) -> str:
    return str((request.headers, request.body))


@pytest.mark.parametrize(("reply", "kind", "reason"), CASES)
async def test_a_failure_has_its_class_and_a_reason_without_secrets(
    google: Google, reply: Callable[[Any], Reply], kind: type[SinkError], reason: str
) -> None:
    google.destination.reply = reply
    tokens = google.login()
    started_s = time.monotonic()
    error = await failure(tokens)
    assert time.monotonic() - started_s < 0.9, "the library's own waits"
    await tokens.close()
    assert type(error) is kind
    assert error.unsent
    assert reason in error.reason
    for secret in ("marked", "good-login"):
        assert not [text for text in told(error) if secret in text]


async def test_a_token_server_that_is_away_is_temporary_and_passes(google: Google) -> None:
    await google.destination.stop()
    tokens = google.login()
    error = await failure(tokens)
    assert (type(error), error.reason) == (Temporary, "no token: 127.0.0.1: connection refused")
    await google.destination.listen()
    await tokens.headers()
    await tokens.close()


async def test_a_late_failure_is_raised_at_the_next_call(google: Google) -> None:
    google.destination.reply = lambda _: None
    tokens = google.login(timeout="200ms")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await tokens.headers()
    fetching = tokens._fetching
    assert fetching is not None
    await until(fetching.done, what="the end of the fetch")
    assert (await failure(tokens)).reason == "no token: 127.0.0.1: no answer in time"
    assert google.asked == 1
    google.destination.reply = google.double.answer
    await tokens.headers()
    await tokens.close()


async def test_a_fetch_is_left_when_the_sink_closes(google: Google) -> None:
    google.destination.reply = lambda _: None
    tokens = google.login(timeout="30s")
    waiting = asyncio.create_task(failure(tokens))
    await until(lambda: google.asked == 1, what="the request for a token")
    async with asyncio.timeout(1):
        await tokens.close()
        assert type(await waiting) is Temporary
    await until(lambda: google.destination.open == 0, what="the end of the connection")


async def test_a_quota_project_is_named_with_every_request(google: Google) -> None:
    tokens = google.login(quota_project_id="pays")
    assert (await tokens.headers())["x-goog-user-project"] == "pays"
    await tokens.close()


async def test_a_token_does_not_print(google: Google) -> None:
    tokens = google.login()
    await tokens.headers()
    assert "ya29" not in f"{tokens._token!r} {vars(tokens)!r}"
    await tokens.close()


@pytest.mark.usefixtures("nowhere")
async def test_the_reason_says_where_to_put_missing_credentials(
    google: Google,
) -> None:
    tokens = google.tokens(google_credentials.search)
    error = await failure(tokens)
    await tokens.close()
    assert type(error) is Misconfigured
    assert "set `credentials` or GOOGLE_APPLICATION_CREDENTIALS" in error.reason


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("content", [None, "marked", '{"type": "marked"}'])
async def test_a_named_file_without_credentials_is_reported(
    google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    tokens = google.tokens(google_credentials.search)
    error = await failure(tokens)
    assert type(error) is Misconfigured
    assert "the file that GOOGLE_APPLICATION_CREDENTIALS names is missing or" in error.reason
    assert not [text for text in told(error) if "marked" in text]
    # It is put right without a restart.
    path.write_text(service_account())
    assert await bearer(tokens)
    await tokens.close()


@pytest.mark.usefixtures("nowhere")
async def test_a_workload_of_another_cloud_gets_its_token_for_its_own_identity(
    google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = tmp_path / "identity"
    identity.write_text("good-identity")
    path = tmp_path / "federation.json"
    federation = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": google.destination.url("/sts"),
        "credential_source": {"file": str(identity)},
    }
    path.write_text(json.dumps(federation))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "any")  # or Google would be asked for its name
    tokens = google.tokens(google_credentials.search)
    assert await bearer(tokens) == google.double.issued[0]
    google.later(google.double.lasts_s + 1)
    identity.write_text("marked-identity")
    error = await failure(tokens)
    assert (type(error), "revoked" in error.reason) == (Misconfigured, True)
    assert not [text for text in told(error) if "marked" in text]
    await tokens.close()


@pytest.mark.usefixtures("metadata")
async def test_on_a_machine_of_googles_the_metadata_server_gives_the_token(google: Google) -> None:
    tokens = google.tokens(google_credentials.search)
    assert await bearer(tokens) == google.double.issued[0]
    await tokens.close()
    assert {request.header["metadata-flavor"] for request in google.destination.requests} == {
        "Google"
    }


@pytest.mark.usefixtures("metadata")
async def test_a_metadata_server_that_fails_is_temporary(google: Google) -> None:
    tokens = google.tokens(google_credentials.search)
    await tokens.headers()
    google.later(google.double.lasts_s + 1)
    await google.destination.stop()
    assert type(await failure(tokens)) is Temporary
    await google.destination.listen()
    await tokens.headers()
    await tokens.close()


@pytest.mark.usefixtures("nowhere")
async def test_a_key_revoked_by_google_can_be_replaced_while_the_relay_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lead: Event
) -> None:
    path = tmp_path / "key.json"
    path.write_text(service_account())
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    async with PubsubHarness() as destination:
        settings: Any = destination.settings(credentials=None)
        sink = pubsub.build(settings, ManualClock())
        await sink.send(lead)
        known, destination.double.certificate = destination.double.certificate, None
        with pytest.raises(Misconfigured, match="401 UNAUTHENTICATED"):
            await sink.send(lead)
        path.write_text(service_account(private_key_id="another"))
        destination.double.certificate = known
        await sink.send(lead)
        await sink.close()
        (*_, last) = destination.destination.requests
    assert jwt.decode_header(last.header["authorization"].split()[1])["kid"] == "another"
