"""What a byte of a stranger costs a relay in memory and processor time, for every kind of request.

`python -m benchmarks.strangers [--connections N] [--seconds S]`; each kind has a relay of its own.
Meanwhile another address sends signed events, and the slowest of them is shown.
"""

import argparse
import asyncio
import contextlib
import http.client
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks import rig
from relay.core import sample_events, signature
from relay.server.connection_limit import file_limit

MIB = 1 << 20
SEND_S = 20.0
PAUSE_S = 0.05
ADDRESSES = 4
"""One address has a fourth of the public listener's connections."""

SENDER = "127.0.1.1"
_POST = b"POST /webhooks HTTP/1.1\r\nHost: relay\r\n"
_FORGED = b"Service-Signature: t=1772443800,v1=" + b"0" * 64 + b"\r\n"


class Kind(NamedTuple):
    """A part of the connections sends this, and reads the responses or not."""

    name: str
    sent: bytes
    share: float = 1.0
    reads: bool = True


def _body(missing: int) -> bytes:
    head = b"%b%bContent-Length: %d\r\n\r\n" % (_POST, _FORGED, MIB)
    return head + b"x" * (MIB - missing)


def _chunks(count: int) -> bytes:
    return _POST + _FORGED + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * count


KINDS = (
    Kind("connections without a byte", b""),
    Kind("heads of 60 kB without an end", _POST + b"X-Long: " + b"a" * 60_000),
    Kind("heads of 99 headers without an end", _POST + b"a: bcdef\r\n" * 98),
    Kind("heads of 15,000 tiny headers", _POST + b"a:\r\n" * 15_000 + b"\r\n"),
    Kind("bodies that never come", _POST + _FORGED + b"a:\r\n" * 90 + b"Content-Length: 9\r\n\r\n"),
    Kind("bodies of 1 MiB without an end", _body(1), 0.25),
    Kind("bodies of 1 MiB, forged", _body(0), 0.25),
    Kind("one-byte chunks", _chunks(10_000), 0.25),
    Kind("pipelined GETs", b"GET / HTTP/1.1\r\n\r\n" * 400),
    Kind("pipelined GETs, unread", b"GET / HTTP/1.1\r\n\r\n" * 400, reads=False),
    Kind("pipelined heads of 60 kB", (b"GET /%b HTTP/1.1\r\n\r\n" % (b"a" * 60_000)) * 10, 0.1),
)


COLUMNS = (
    *("what strangers send", "sent", "memory before", "at most", "after"),
    *("a byte takes", "processor time", "slowest signed event"),
)


class Cost(NamedTuple):
    """What a load cost one relay."""

    sent: int
    before_mib: float
    peak_mib: float
    after_mib: float
    processor_s: float
    slowest_s: float
    failed: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strangers")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=3.0, help="that the connections stay open")
    given = parser.parse_args()
    print(rig.machine())
    rows: list[tuple[str, ...]] = [COLUMNS]
    loads: dict[str, tuple[Kind, ...]] = {kind.name: (kind,) for kind in KINDS}
    loads["all of these at once"] = tuple(
        kind._replace(share=kind.share / len(KINDS)) for kind in KINDS
    )
    for name, kinds in loads.items():
        rows.append((name, *_shown(_measure(kinds, given.connections, given.seconds))))
    rig.table(rows)


def _shown(cost: Cost) -> tuple[str, ...]:
    mb = max(cost.sent / 1e6, 1e-6)
    grown = (cost.peak_mib - cost.before_mib) * MIB
    return (
        f"{cost.sent / 1e6:.1f} MB",
        f"{cost.before_mib:.0f} MiB",
        f"{cost.peak_mib:.0f} MiB",
        f"{cost.after_mib:.0f} MiB",
        f"{grown / cost.sent:.1f} bytes" if cost.sent else "-",
        f"{1e3 * cost.processor_s / mb:.0f} ms a MB" if cost.sent else f"{cost.processor_s:.1f} s",
        f"{cost.slowest_s:.2f} s" + (f", {cost.failed} failed" if cost.failed else ""),
    )


def _measure(kinds: tuple[Kind, ...], connections: int, seconds: float) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        relay = rig.Relay(Path(folder), [])
        with relay.running() as running:
            sender = _Sender(relay.listen)
            sender.send()
            before_mib, before_s = running.resident_mib(), running.processor_s()
            # In a process of its own, so that the sender waits for the relay alone.
            spawn = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=spawn) as pool:
                load = pool.submit(_load, relay.listen, kinds, connections, seconds)
                while not load.done():
                    sender.send()
                    time.sleep(PAUSE_S)
            spent_s = running.processor_s() - before_s
            return Cost(
                load.result(),
                before_mib,
                running.peak_mib(),
                running.resident_mib(),
                spent_s,
                max(sender.took_s),
                sender.failed,
            )


class _Sender:
    """Sends signed events from an address of its own, one after the other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.took_s: list[float] = []
        self.failed = 0

    def send(self) -> None:
        body = sample_events.event("video.ready", event_id=f"evt_{len(self.took_s)}").body
        header = signature.header(rig.SECRET.encode(), now_s=int(time.time()), body=body)
        started_s = time.perf_counter()
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._port, timeout=SEND_S, source_address=(SENDER, 0)
        )
        with contextlib.closing(connection):
            try:
                connection.request("POST", "/webhooks", body, {"Service-Signature": header})
                taken = connection.getresponse().status in (200, 202)
            except OSError:
                taken = False
        self.failed += not taken
        self.took_s.append(time.perf_counter() - started_s)


def _load(port: int, kinds: tuple[Kind, ...], connections: int, seconds: float) -> int:
    """Return the number of bytes that the relay's side has taken."""
    file_limit()
    return uvloop.run(_send(port, kinds, connections, seconds))


async def _send(port: int, kinds: tuple[Kind, ...], connections: int, seconds: float) -> int:
    ended = asyncio.Event()
    strangers = [
        _stranger(port, f"127.0.0.{2 + number % ADDRESSES}", kind, ended)
        for kind in kinds
        for number in range(max(1, int(connections * kind.share)))
    ]
    tasks = [asyncio.create_task(each) for each in strangers]
    await asyncio.sleep(seconds)
    ended.set()
    return sum(await asyncio.gather(*tasks))


async def _stranger(port: int, address: str, kind: Kind, ended: asyncio.Event) -> int:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    except OSError:
        return 0
    reading = asyncio.create_task(_read(reader)) if kind.reads else None
    writer.write(kind.sent)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(SEND_S):
            await writer.drain()
    await ended.wait()
    sent = len(kind.sent) - writer.transport.get_write_buffer_size()
    writer.transport.abort()
    if reading is not None:
        await reading
    return sent


async def _read(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65_536):
            pass


if __name__ == "__main__":
    main()
