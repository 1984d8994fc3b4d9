"""How soon a sink of another relay receives an event, and what two idle relays ask the database."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import uvloop

from benchmarks import load, rig
from benchmarks.deliver import RATE, lags
from benchmarks.postgres.server import Server
from relay.store.postgres.settings import PostgresSettings
from tests.ports import free_port

_WARM_S = 2
_SETTLED_S = 15
"""Time after which the polls of a relay without work have slowed down."""
_IDLE_S = 20
_OWNERS = """
SELECT o.sink, m.address FROM {schema}.ownership o JOIN {schema}.members m ON m.id = o.holder
WHERE o.sink LIKE 'sink%'
"""


def measure(server: Server, *, seconds: int) -> None:
    """Send events to one of two relays, each of which dispatches one of two sinks."""
    with server.schema() as settings, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ports = free_port(), free_port()
        notes = {f"sink{port}": folder / f"received{port}" for port in ports}
        with ExitStack() as stack:
            for port in ports:
                file = str(notes[f"sink{port}"])
                stack.enter_context(rig.destination("sink", port, file))
            relays = _relays(folder, ports, settings)
            addresses = [stack.enter_context(relay.running()).admin_url for relay in relays]
            owners = _owners(server, settings, addresses)
            uvloop.run(load.paced(relays[0].listen, rate=RATE, seconds=_WARM_S))
            times = uvloop.run(load.paced(relays[0].listen, rate=RATE, seconds=seconds))
            for port in ports:
                _all_received(port, RATE * (_WARM_S + seconds))
            idle = _idle(server)
        rows: list[tuple[str, ...]] = [(f"from POST to receipt at {RATE} per second", "p50", "p99")]
        for sink, address in owners.items():
            p50, p99 = lags(notes[sink], times)
            whose = "same relay" if address == addresses[0] else "other relay"
            rows.append((f"by a sink of the {whose}", f"{p50:.1f} ms", f"{p99:.1f} ms"))
        rig.table(rows)
    print(f"statements of two idle relays: {idle / len(relays):.1f} per second each")


def _relays(folder: Path, ports: tuple[int, ...], settings: PostgresSettings) -> list[rig.Relay]:
    sinks = [rig.http_sink(port) for port in ports]
    found = []
    for number in range(2):
        own = folder / f"relay{number}"
        own.mkdir()
        found.append(rig.Relay(own, sinks, settings))
    return found


def _owners(server: Server, settings: PostgresSettings, addresses: list[str]) -> dict[str, str]:
    """Return the admin address of each sink's relay, once each relay has one."""

    def read() -> dict[str, str]:
        rows = server.execute(_OWNERS.format(schema=settings.schema))
        return {sink: address.rstrip("/") for sink, address in rows}

    rig.until(lambda: sorted(read().values()) == sorted(addresses), seconds=30)
    return read()


def _all_received(port: int, events: int) -> None:
    rig.until(lambda: rig.received(port) >= events, seconds=30)


def _idle(server: Server) -> float:
    """Return the relays' statements per second."""
    time.sleep(_SETTLED_S)
    with server.logged() as statements:
        time.sleep(_IDLE_S)
        return len(statements()) / _IDLE_S
