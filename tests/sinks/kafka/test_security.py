"""How the `kafka` sink logs in, what TLS it insists on, and which settings it does not take."""

import asyncio
import ssl
import struct
import subprocess
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import Misconfigured
from relay.core.event import Event
from relay.sinks.kafka.sink import KafkaSink, build
from tests.conftest import ManualClock
from tests.sinks.kafka.harness import KafkaHarness
from tests.stub_server import until

PASSWORD = "marked-password"


class Bare(KafkaHarness):
    """Settings without a cluster."""

    def table(self) -> dict[str, Any]:
        return {}


class Sinks:
    """Makes sinks and closes them."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.made: list[KafkaSink] = []

    def __call__(self, **table: object) -> KafkaSink:
        sink = build(Bare().settings(**table), self._clock)  # type: ignore[arg-type]
        self.made.append(sink)
        return sink

    async def close(self) -> None:
        for sink in self.made:
            await sink.close()

    @asynccontextmanager
    async def refused(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        """Run a server that refuses every login, and close the sinks before it ends."""
        before = asyncio.all_tasks()
        server = await asyncio.start_server(refuse_login, "127.0.0.1", 0, ssl=tls)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            await self.close()
            server.close()
            # Each connection has a task, also one that was made again in the meantime.
            await until(lambda: asyncio.all_tasks() <= before, what="the end of the connections")


@pytest.fixture
async def make(clock: ManualClock) -> AsyncIterator[Sinks]:
    sinks = Sinks(clock)
    yield sinks
    await sinks.close()


async def test_a_wrong_password_is_misconfigured(make: Sinks, lead: Event) -> None:
    async with make.refused() as brokers:
        sink = make(
            brokers=brokers,
            security_protocol="SASL_PLAINTEXT",
            username="relay",
            password=PASSWORD,
        )
        for trial in (sink.check(), sink.send(lead)):
            with pytest.raises(Misconfigured, match="wrong username or password") as caught:
                await trial
            assert PASSWORD not in "".join(traceback.format_exception(caught.value))


SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
UNSUPPORTED_VERSION, SASL_AUTHENTICATION_FAILED = 35, 58


async def refuse_login(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speak as much of Kafka's protocol as a login takes, and refuse it, repeating everything."""
    try:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            request = await reader.readexactly(size)
            api, version, correlation = struct.unpack_from(">hhi", request)
            answer = struct.pack(">i", correlation) + answer_to(api, version, request)
            writer.write(struct.pack(">i", len(answer)) + answer)
    except (asyncio.IncompleteReadError, ConnectionResetError):
        writer.close()


def answer_to(api: int, version: int, request: bytes) -> bytes:
    if api == API_VERSIONS:
        error = UNSUPPORTED_VERSION if version else 0
        return struct.pack(">hi9h", error, 3, 17, 0, 1, 18, 0, 0, 36, 0, 0)
    if api == SASL_HANDSHAKE:
        return struct.pack(">hih5s", 0, 1, 5, b"PLAIN")
    said = request.decode(errors="replace").encode()
    length = len(said)
    return struct.pack(f">hh{length}si", SASL_AUTHENTICATION_FAILED, length, said, 0)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Make a server's certificate, its key in the same file, that is its own authority."""
    path = tmp_path / "server.pem"
    names = ("-subj", "/CN=kafka", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-nodes", "-keyout", str(path), "-out", str(tmp_path / "cert.pem"), "-days", "2")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    subprocess.run(("openssl", "req", "-x509", *curve, *files, *names), check=True)
    path.write_text(path.read_text() + (tmp_path / "cert.pem").read_text())
    return path


@pytest.mark.parametrize(
    ("trusted", "reason"), [(True, "wrong username or password"), (False, "does not verify")]
)
async def test_tls_is_verified_before_the_password_is_sent(
    make: Sinks, certificate: Path, *, trusted: bool, reason: str
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with make.refused(context) as brokers:
        sink = make(
            brokers=brokers,
            security_protocol="SASL_SSL",
            username="relay",
            password=PASSWORD,
            **({"ca_file": str(certificate)} if trusted else {}),
        )
        with pytest.raises(Misconfigured, match=reason):
            await sink.check()
