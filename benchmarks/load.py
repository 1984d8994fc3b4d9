"""Load on a listener: as much as it takes (wrk), or at a rate (our own connections)."""

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import requests

CONNECTIONS = 64
_SCRIPT = Path(__file__).with_name("replay.lua")


def flood(port: int, file: Path, *, seconds: int, connections: int = CONNECTIONS) -> float:
    """Answered requests per second; fails where one was not a 2xx."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(_SCRIPT)]
    target = [f"http://127.0.0.1:{port}", "--", str(file)]
    try:
        printed = subprocess.run([*command, *target], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit("wrk is needed: apt-get install wrk")
    if "Non-2xx" in printed.stdout:
        sys.exit(f"the load was not answered as it should be:\n{printed.stdout}")
    found = re.search(r"Requests/sec:\s+([0-9.]+)", printed.stdout)
    assert found is not None
    return float(found[1])


async def paced(
    port: int, *, rate: float, seconds: float, connections: int = CONNECTIONS
) -> dict[bytes, tuple[int, int]]:
    """Send new events at a rate; return when each was sent and answered (monotonic ns), by body.

    Every event has its own time to start, and a late start counts as waiting.
    """
    waiting = iter(requests.bodies(int(rate * seconds)))
    began_ns = time.monotonic_ns() + 200_000_000
    times: dict[bytes, tuple[int, int]] = {}
    number = iter(range(int(rate * seconds)))

    async def sender() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for index, body in zip(number, waiting, strict=False):
            due_ns = began_ns + int(index / rate * 1e9)
            await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            writer.write(_request(body))
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer)
            await reader.readexactly(int(length[1]) if length else 0)
            if not answer.startswith(b"HTTP/1.1 2"):
                sys.exit(f"not acknowledged: {answer!r}")
            times[body] = (due_ns, time.monotonic_ns())
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(sender())
    return times


def _request(body: bytes) -> bytes:
    return (
        f"POST /webhooks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nService-Signature: {requests.signed(body)}\r\n\r\n"
    ).encode() + body
