"""A name server that never answers delays only the sink whose host it should look up."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED
from tests import service
from tests.guarantees.destinations import Destination
from tests.guarantees.process import Relay, until
from tests.guarantees.traffic import Traffic

_DNS_PORT = 53
_USE = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'
LOOKUPS = 10
"""More at once than libuv makes by itself."""
SINKS = service.SINK.format(
    name="{name}", url="{url}", more='events = ["{kind}"]\nconcurrency = 10'
)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A name server at an address that belongs to this process."""
    number = os.getpid()
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with closing(server):
        server.settimeout(0)
        try:
            server.bind((f"127.53.{number >> 8 & 255}.{number & 255}", _DNS_PORT))
            subprocess.run(["unshare", "--mount", "true"], check=True, capture_output=True)
        except (PermissionError, subprocess.CalledProcessError):
            pytest.skip("a name server, and its place in a mount namespace, need root")
        yield server


async def test_a_silent_name_server_fails_no_attempt_of_another_sink(
    tmp_path: Path, random: Random, silent: socket.socket
) -> None:
    resolv = tmp_path / "resolv.conf"
    resolv.write_text(f"nameserver {silent.getsockname()[0]}\n", encoding="utf-8")
    prefix = ("unshare", "--mount", "sh", "-c", _USE, "sh", str(resolv))
    async with Destination("crm") as crm:
        lost = SINKS.format(name="lost", url="http://lost.example.com/", kind=VIDEO_WATCHED)
        url = crm.url.replace("127.0.0.1", "localhost")
        well = SINKS.format(name="crm", url=url, kind=LEAD_CAPTURED)
        async with (
            Relay(tmp_path, sinks=lost + well, prefix=prefix) as relay,
            Traffic(relay.url, time_scale=1, random=random) as traffic,
        ):
            await relay.start()
            for _ in range(LOOKUPS):
                await traffic.attempt(VIDEO_WATCHED)
            await until(lambda: _is_asked(silent), what="a question to the name server")
            await traffic.attempt(LEAD_CAPTURED)
            await until(lambda: crm.taken.total() == 1, what="the lead at the other sink")
            assert await relay.metric("relay_attempts_total", sink="crm", result="retry") == 0


def _is_asked(server: socket.socket) -> bool:
    try:
        return bool(server.recv(512))
    except BlockingIOError:
        return False
