"""Load on a listener: as much as it takes (wrk), or at a rate (our own connections)."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from benchmarks import pacing, requests

CONNECTIONS = 64
_SCRIPT = Path(__file__).with_name("replay.lua")


def flood(port: int, file: Path, *, seconds: int, connections: int = CONNECTIONS) -> float:
    """Answered requests per second; fails where one was not a 2xx."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(_SCRIPT)]
    target = [f"http://127.0.0.1:{port}", "--", str(file)]
    try:
        printed = subprocess.run([*command, *target], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        sys.exit("wrk is needed: apt-get install wrk")
    if printed.returncode or "Non-2xx" in printed.stdout:
        said = f"{printed.stdout}{printed.stderr}"
        sys.exit(f"the load was not answered as it should be:\n{said}")
    found = re.search(r"Requests/sec:\s+([0-9.]+)", printed.stdout)
    assert found is not None
    return float(found[1])


async def paced(
    port: int, *, rate: float, seconds: float, connections: int = CONNECTIONS
) -> dict[bytes, tuple[int, int]]:
    """Send new events at a rate; return when each was due and answered (monotonic ns), by body."""
    times, fault = await paced_until_down(port, rate=rate, seconds=seconds, connections=connections)
    if fault:
        sys.exit(f"the load was not answered as it should be: {fault}")
    return times


async def paced_until_down(
    port: int, *, rate: float, seconds: float, connections: int = CONNECTIONS
) -> tuple[dict[bytes, tuple[int, int]], str]:
    """Send like `paced`; return the events that were acknowledged, and why it ended too early."""
    bodies = requests.bodies(int(rate * seconds))
    whole = [_request(body) for body in bodies]
    answers = await asyncio.to_thread(
        pacing.send, port, whole, rate=rate, connections=min(connections, len(bodies))
    )
    times = zip(bodies, answers.due_ns, answers.answered_ns, strict=True)
    return {body: (due, answered) for body, due, answered in times if answered}, answers.fault


def _request(body: bytes) -> bytes:
    return (
        f"POST /webhooks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nService-Signature: {requests.signed(body)}\r\n\r\n"
    ).encode() + body
