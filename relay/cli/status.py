"""`relay status`: the running relay as a whole."""

import json
from pathlib import Path
from typing import Any

import click

from relay.cli.client import connected
from relay.cli.columns import ago, moment, pairs
from relay.cli.parameters import config_option, json_option


@click.command()
@config_option
@json_option
def status(*, path: Path | None, as_json: bool) -> None:
    """Say which relay runs, since when, and what it may have missed while it was away."""
    with connected(path) as client:
        found = client.get("/status")
    if as_json:
        click.echo(json.dumps(found))
        return
    now_ms, started_ms = found["now_ms"], found["started_ms"]
    pairs(
        [
            ("version", found["version"]),
            ("started", f"{moment(started_ms)}, {ago(started_ms, now_ms=now_ms)}"),
            ("state", "stopping" if found["draining"] else "running"),
            *_downtime(found["downtime"]),
        ]
    )


def _downtime(downtime: dict[str, Any] | None) -> list[tuple[str, str]]:
    if downtime is None:
        return [("away before", "never: this is the store's first start")]
    lacks = downtime["lacks"]
    away = f"{moment(downtime['from_ms'])} to {moment(downtime['to_ms'])}"
    if lacks is None:
        return [("away before", away), ("lost", "nothing: the sender has tried for longer")]
    lost = f"events first sent {moment(lacks['from_ms'])} to {moment(lacks['to_ms'])}"
    return [("away before", away), ("lost", f"{lost}: the sender has given them up")]
