"""What every sink with TLS does, at a real server that demands it: each test is one fact."""

import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, SinkError
from relay.core.event import Event
from relay.core.sink import BatchSink, Sink
from tests.brokers.authority import Authority
from tests.conftest import ManualClock
from tests.sinks.batch import kinds, series
from tests.sinks.harnesses import SECURED, entered

Build = Callable[..., Sink]


@pytest.fixture(params=SECURED)
async def destination(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Return a harness that is `Secured`."""
    async with entered(request) as harness:
        yield harness


@pytest.fixture
async def secured(destination: Any, tmp_path: Path) -> tuple[Authority, Mapping[str, Any]]:
    authority, table = await destination.secure(tmp_path / "tls")
    return authority, table


@pytest.fixture
def authority(secured: tuple[Authority, Mapping[str, Any]]) -> Authority:
    """Return the one that vouches for the destination and for those that it lets in."""
    return secured[0]


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "stranger")


@pytest.fixture
async def build(
    destination: Any, secured: tuple[Authority, Mapping[str, Any]]
) -> AsyncIterator[Build]:
    built: list[Sink] = []
    authority, table = secured

    def build(*, trusted: Authority = authority, client: Authority | None = None) -> Sink:
        files = {"ca_file": str(trusted.file)}
        if client is not None:
            files["client_cert_file"] = str(client.issue("client"))
        built.append(destination.build(ManualClock(), **table, **files))
        return built[-1]

    yield build
    for sink in built:
        await sink.close()


async def fault(destination: Any, sink: Sink, event: Event) -> tuple[type[SinkError], str]:
    """Return what a send and a check agree on, and see that no secret shows in it."""
    found = set()
    for trial in (sink.send(event), sink.check(), sink.send(event)):
        with pytest.raises(SinkError) as caught:
            await trial
        text = "".join(traceback.format_exception(caught.value))
        assert not [secret for secret in destination.secrets if secret in text]
        found.add((type(caught.value), caught.value.reason))
    assert len(found) == 1
    return found.pop()


async def test_tls_is_spoken_with_certificates_on_both_sides(
    build: Build, authority: Authority, lead: Event
) -> None:
    sink = build(client=authority)
    await sink.check()
    await sink.send(lead)


async def test_a_batch_has_all_its_answers_over_tls(
    build: Build, authority: Authority, lead: Event
) -> None:
    # One TLS record may hold many answers: once it is read, no socket announces the rest of them.
    sink = build(client=authority)
    assert isinstance(sink, BatchSink)
    assert kinds(await sink.send_batch(series(lead, 40))) == [SinkResponse] * 40


async def test_a_destination_with_a_certificate_of_another_authority_is_misconfigured(
    destination: Any, build: Build, authority: Authority, stranger: Authority, lead: Event
) -> None:
    kind, reason = await fault(destination, build(trusted=stranger, client=authority), lead)
    assert kind is Misconfigured
    assert reason.startswith(f"the {destination.peer}'s TLS certificate does not verify: ")


async def test_a_required_client_certificate_that_is_missing_is_reported_every_time(
    destination: Any, build: Build, lead: Event
) -> None:
    # A reset often overtakes the reason, so that one trial shows nothing.
    for _ in range(5):
        assert await fault(destination, build(), lead) == unproved(destination)


async def test_a_client_certificate_of_another_authority_is_misconfigured(
    destination: Any, build: Build, stranger: Authority, lead: Event
) -> None:
    assert await fault(destination, build(client=stranger), lead) == unproved(destination)


def unproved(destination: Any) -> tuple[type[SinkError], str]:
    return Misconfigured, f"the {destination.peer} does not accept our TLS certificate"


async def test_a_destination_without_tls_gets_nothing(destination: Any, lead: Event) -> None:
    sink = destination.build(ManualClock(), timeout="1s", **destination.without_tls())
    for trial in (sink.send(lead), sink.check()):
        with pytest.raises(SinkError):
            await trial
    await sink.close()
    assert destination.messages() == []
