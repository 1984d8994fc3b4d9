"""`relay store`: checks, backs up and copies the config's store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import click
from msgspec.structs import asdict

from relay.cli.client import AdminClient, RelayTarget, connected, relay_command, relay_options
from relay.cli.output import Output, pairs, printing, table
from relay.cli.parameters import config_option
from relay.config import default_path, load_store
from relay.core.clock import SystemClock
from relay.core.delivery import Status
from relay.core.errors import ConfigError
from relay.core.units import size
from relay.store import engines
from relay.store.integrity import Inspection, StoreContent


@click.group()
def store() -> None:
    """Check, back up, restore or copy the store."""


@store.command()
@relay_options
@printing
def check(*, target: RelayTarget) -> Output:
    """Read the whole store, and print its content and its faults.

    Changes nothing. A running relay reads its file; without one the command does, and it always
    reads a database itself.
    Exits 0 for a sound store, else 1.
    """
    if target.url is not None:
        return _output(str(target.url), _inspect_running(target))
    settings = load_store(target.config)
    engine = engines.of(settings)
    place = engine.location(settings)
    if engine.is_held(settings):
        return _output(place, _inspect_running(target))
    return _output(place, asyncio.run(engine.inspect(settings)))


def _inspect_running(target: RelayTarget) -> Inspection:
    with connected(target) as client:
        inspection: Inspection = client.get_at_length("/store/check").convert(Inspection)
    return inspection


@store.command()
@click.argument("file", metavar="PATH", type=click.Path(path_type=Path, dir_okay=False))
@relay_command
def backup(client: AdminClient, *, file: Path) -> Output:
    """Write a copy of the running relay's store to PATH, which must not exist, and check it.

    The copy holds all data of the relay, personal data included, and `relay erase` does not affect
    it.
    """
    client.save("/store/backup", file)
    inspection = asyncio.run(engines.inspect_copy(file))
    if inspection.faults:
        advice = "the copy has faults; run `relay store check` to see if the store has them too"
        click.echo(f"relay: {advice}", err=True)
    return _output(str(file), inspection)


@store.command()
@click.argument(
    "file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False, exists=True)
)
@config_option
@printing
def restore(*, file: Path, path: Path | None) -> Output:
    """Replace the config's store by a backup, while no relay runs.

    The backup is checked first; if it has faults, nothing changes. The old store and its log are
    kept beside it. Exits 0 if the backup is in place, else 1.
    """
    settings = load_store(path or default_path())
    engine, now_ms = engines.of(settings), SystemClock().now_ms()
    inspection, old = asyncio.run(engine.restore(settings, file, now_ms=now_ms))
    output = _output(engine.location(settings) if not inspection.faults else str(file), inspection)
    kept = None if old is None else str(old)
    lines = [*output.lines, *_afterwards(inspection, kept)]
    return Output({**output.document, "kept": kept}, lines, ok=output.ok)


def _afterwards(inspection: Inspection, kept: str | None) -> Iterator[str]:
    yield ""
    if inspection.faults:
        yield "The backup has faults; the store is as it was."
        return
    if kept is not None:
        yield f"The old store is kept as {kept}; remove it once you no longer need it."
    yield "Start the relay: what the sender sent since the backup is not in it."


@store.command("copy")
@click.option(
    "--to",
    required=True,
    metavar="CONFIG",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Config whose [store] is the database.",
)
@config_option
@printing
def copy(*, path: Path | None, to: Path) -> Output:
    """Copy a stopped relay's store into an empty schema of a database, and compare both.

    Run again, it goes on where it was cut off. A relay can open the schema only once it is whole.
    Exits 0 if both stores hold the same, else 1.
    """
    path = path or default_path()
    source, target = load_store(path), load_store(to)
    for file, fault in (
        (path, engines.fault_of_source(source)),
        (to, engines.fault_of_target(target)),
    ):
        if fault is not None:
            raise ConfigError(str(file), (fault,))
    now_ms = SystemClock().now_ms()
    copied = engines.copy(
        source, target, now_ms=now_ms, wrote=_Progress().add, compares=_say_compared
    )
    ok = all(each.is_same for each in copied)
    rows = [
        {"TABLE": each.table, "ROWS": each.rows, "": "the same" if each.is_same else "differs"}
        for each in copied
    ]
    return Output({"ok": ok, "tables": copied}, [*table(rows, empty=""), *_next(ok=ok)], ok=ok)


def _next(*, ok: bool) -> Iterator[str]:
    yield ""
    if ok:
        yield "The copy is whole. Start the relay with the new config, and not with the old one."
    else:
        yield "The stores differ: drop the schema, and copy again while no relay runs."


def _say_compared(name: str) -> None:
    click.echo(f"{name}: comparing", err=True)


class _Progress:
    """Prints the rows of each table as they are written, many at a time."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}

    def add(self, name: str, rows: int) -> None:
        self._rows[name] = self._rows.get(name, 0) + rows
        click.echo(f"{name}: {self._rows[name]} rows copied", err=True)


def _output(place: str, inspection: Inspection) -> Output:
    content, faults = inspection.content, inspection.faults
    document = {
        "file": place,
        "ok": not faults,
        "faults": faults,
        "size_bytes": inspection.size_bytes,
    }
    if content is None:
        return Output(document, [f"{place}: {faults[0]}"], ok=False)
    sinks = {
        sink: {status: counts[status] for status in (Status.PENDING, Status.DEAD)}
        for sink, counts in content.sinks.items()
    }
    document |= asdict(content) | {"sinks": sinks}
    verdict = "sound" if not faults else "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    rows = [*_counts(content), ("size", size(inspection.size_bytes))]
    rows += [("fault", fault) for fault in faults]
    return Output(document, [f"{place}: {verdict}", *pairs(rows, indent="  ")], ok=not faults)


def _counts(content: StoreContent) -> Iterator[tuple[str, object]]:
    yield "schema", content.schema
    yield "events", content.events
    states = (f"{count} {status}" for status, count in content.deliveries.items())
    yield "deliveries", ", ".join(states)
    for sink, counts in content.sinks.items():
        yield f"sink {sink}", f"{counts[Status.PENDING]} pending, {counts[Status.DEAD]} dead"
    yield "unreadable", content.unreadable
