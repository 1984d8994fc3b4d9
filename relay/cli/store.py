"""`relay store`: checks and backs up the config's store."""

import asyncio
import json
from pathlib import Path
from typing import Any

import click

from relay.cli.client import connected
from relay.cli.output import safe
from relay.cli.parameters import json_option
from relay.cli.target import Target, relay_options
from relay.config import load_store
from relay.core.delivery import Status
from relay.core.errors import ApiError
from relay.core.units import size
from relay.store.integrity import Content, Inspection
from relay.store.sqlite import disk
from relay.store.sqlite.integrity import inspect


@click.group()
def store() -> None:
    """Check or back up the store."""


@store.command()
@relay_options
@json_option
@click.pass_context
def check(context: click.Context, *, target: Target, as_json: bool) -> None:
    """Read the whole store, and print its content and its faults.

    Changes nothing. A running relay does the reading; without one the command reads the file.
    Exits 0 for a sound store, else 1.
    """
    if target.url is not None:
        place, inspection = str(target.url), _inspect_running(target)
    else:
        place = load_store(target.config).path
        free = disk.is_free(Path(place))
        inspection = _inspect_file(Path(place)) if free else _inspect_running(target)
    show = _as_json if as_json else _as_text
    click.echo(show(place, inspection))
    context.exit(1 if inspection.faults else 0)


def _inspect_file(file: Path) -> Inspection:
    if file.is_file():
        return asyncio.run(inspect(file))
    return Inspection(0, None, ("there is no such file; start the relay once to create it",))


def _inspect_running(target: Target) -> Inspection:
    with connected(target) as client:
        inspection: Inspection = client.get_at_length("/store/check").convert(Inspection)
    return inspection


@store.command()
@click.argument("file", metavar="PATH", type=click.Path(path_type=Path, dir_okay=False))
@relay_options
@json_option
def backup(*, file: Path, target: Target, as_json: bool) -> None:
    """Write a copy of the running relay's store to PATH, which must not exist, and check it.

    The copy holds all data of the relay, personal data included, and `relay erase` does not affect
    it.
    """
    with connected(target) as client:
        client.save("/store/backup", file)
    inspection = asyncio.run(inspect(file))
    # SQLite leaves these files behind after the check.
    for companion in ("-wal", "-shm"):
        file.with_name(file.name + companion).unlink(missing_ok=True)
    click.echo((_as_json if as_json else _as_text)(str(file), inspection))
    if inspection.faults:
        raise ApiError(
            "the copy has faults; run `relay store check` to see if the store has them too"
        )


def _as_text(place: str, inspection: Inspection) -> str:
    if inspection.content is None:
        return f"{place}: {inspection.faults[0]}"
    faults = len(inspection.faults)
    verdict = "sound" if not faults else "1 fault" if faults == 1 else f"{faults} faults"
    rows = [*_rows(inspection.content), ("size", size(inspection.size_bytes))]
    rows += [("fault", safe(fault)) for fault in inspection.faults]
    width = max(len(name) for name, _ in rows)
    return "\n".join(
        [f"{place}: {verdict}", *(f"  {name:{width}}  {value}" for name, value in rows)]
    )


def _rows(content: Content) -> list[tuple[str, str]]:
    states = ", ".join(f"{count} {status}" for status, count in content.deliveries.items())
    return [
        ("schema", str(content.schema)),
        ("events", str(content.events)),
        ("deliveries", states),
        *(
            (
                f"sink {sink}",
                f"{tally[Status.PENDING]} pending, {tally[Status.DEAD]} dead",
            )
            for sink, tally in content.sinks.items()
        ),
        ("unreadable", str(content.unreadable)),
    ]


def _as_json(place: str, inspection: Inspection) -> str:
    content = inspection.content
    document: dict[str, Any] = {
        "file": place,
        "ok": not inspection.faults,
        "faults": list(inspection.faults),
        "size_bytes": inspection.size_bytes,
    }
    if content is not None:
        document |= {
            "schema": content.schema,
            "events": content.events,
            "unreadable": content.unreadable,
            "deliveries": content.deliveries,
            "sinks": {
                sink: {"pending": tally[Status.PENDING], "dead": tally[Status.DEAD]}
                for sink, tally in content.sinks.items()
            },
        }
    return json.dumps(document)
