"""Acknowledged events per second: on either engine, beside an endpoint, and with two relays."""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import load, requests, rig
from benchmarks.postgres.server import WAYS, Server
from benchmarks.rounds import Rounds
from relay.store.postgres.settings import PostgresSettings
from tests.ports import free_port

_PER_SECOND = 20_000
"""Requests made for each second, more than are answered, so that no event is sent twice."""

_TOO_SHORT = "the file of requests was too short: some events came twice"


def measure(server: Server, *, rounds: int, seconds: int) -> None:
    """Take turns, two sinks down in each."""
    turns = {"relay on SQLite": partial(on_sqlite, seconds)}
    for way in WAYS:
        turns[f"minimal endpoint, {way}"] = partial(_endpoint, server, way, seconds)
        turns[f"relay on PostgreSQL, {way}"] = partial(_relay, server, way, seconds)
    turns["two relays on PostgreSQL, socket"] = partial(_two_relays, server, seconds)
    found = Rounds.take(turns, rounds)
    one = "relay on PostgreSQL, socket"
    print(f"acknowledged, {load.CONNECTIONS} connections, two sinks down, {rounds} rounds")
    found.print(
        "per second",
        (
            *((f"relay on PostgreSQL, {way}", "relay on SQLite") for way in WAYS),
            *((f"relay on PostgreSQL, {way}", f"minimal endpoint, {way}") for way in WAYS),
            ("two relays on PostgreSQL, socket", one),
        ),
    )


def on_sqlite(seconds: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return flood([rig.Relay(Path(folder), _sinks())], Path(folder), seconds)


def on_postgres(settings: PostgresSettings, seconds: int, relays: int = 1) -> float:
    """Return the rate of some relays on one schema."""
    with tempfile.TemporaryDirectory() as name:
        sinks, found = _sinks(), []
        for number in range(relays):
            folder = Path(name, str(number))
            folder.mkdir()
            found.append(rig.Relay(folder, sinks, settings))
        return flood(found, Path(name), seconds)


def flood(relays: list[rig.Relay], folder: Path, seconds: int) -> float:
    """Share the connections between the relays."""
    files = [folder / f"requests{number}" for number, _ in enumerate(relays)]
    with ExitStack() as stack:
        members = [stack.enter_context(relay.running()) for relay in relays]
        for file in files:
            requests.write(file, _PER_SECOND * seconds)
        pool = stack.enter_context(ThreadPoolExecutor(len(relays)))
        rates = [
            pool.submit(
                load.flood,
                relay.listen,
                file,
                seconds=seconds,
                connections=load.CONNECTIONS // len(relays),
            )
            for relay, file in zip(relays, files, strict=True)
        ]
        rate = sum(each.result() for each in rates)
        if any(member.metric('relay_requests_total{code="200"') for member in members):
            sys.exit(_TOO_SHORT)
        return rate


def _sinks() -> list[str]:
    return [rig.http_sink(free_port()) for _ in range(2)]


def _relay(server: Server, way: str, seconds: int) -> float:
    with server.schema(way) as settings:
        return on_postgres(settings, seconds)


def _two_relays(server: Server, seconds: int) -> float:
    with server.schema() as settings:
        return on_postgres(settings, seconds, relays=2)


def _endpoint(server: Server, way: str, seconds: int) -> float:
    with server.schema(way) as settings, tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        file = folder / "requests"
        requests.write(file, _PER_SECOND * seconds)
        arguments = [str(port), settings.dsn.reveal(), settings.schema, "one", "other"]
        with rig.server("benchmarks.postgres.endpoint", arguments, port):
            rate = load.flood(port, file, seconds=seconds)
        if rate > _PER_SECOND:
            sys.exit(_TOO_SHORT)
        return rate
