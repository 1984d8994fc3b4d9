"""`relay reload`: reloads the running relay's config and prints the result."""

import json
from collections.abc import Iterable
from typing import Any

import click

from relay.cli.client import connected
from relay.cli.documents import print_json
from relay.cli.parameters import json_option
from relay.cli.target import Target, relay_options
from relay.core.errors import ApiError, ConfigError, Fault


@click.command()
@relay_options
@json_option
@click.pass_context
def reload(context: click.Context, *, target: Target, as_json: bool) -> None:
    """Make the running relay read its config again.

    Exits 0 if the new config is in use, 1 if it was refused or the relay is not reachable.
    """
    try:
        with connected(target) as client:
            changes = client.reload()
    except ConfigError as error:
        # The config lacks a valid admin address or token, so the relay would refuse it as well.
        _refuse(error.faults, as_json=as_json)
        context.exit(1)
    except ApiError as error:
        if not error.faults:
            raise
        _refuse(error.faults, as_json=as_json)
        context.exit(1)
    click.echo(json.dumps({"ok": True, "faults": [], **changes}) if as_json else _summary(changes))


def _refuse(faults: Iterable[Fault], *, as_json: bool) -> None:
    if as_json:
        listed = [{"path": fault.path, "message": fault.message} for fault in faults]
        print_json({"ok": False, "faults": listed})
        return
    lines = (f"  {fault}" for fault in faults)
    click.echo("\n".join(("refused; the relay keeps its current config", *lines)))


def _summary(changes: dict[str, Any]) -> str:
    rows = {verb: _names(changes, verb) for verb in ("added", "changed", "removed")}
    rows["rerouted"] = [f"sink {name}" for name in changes["rerouted"]]
    rows["changed"] += changes["settings"]
    lines = [f"  {verb:8}  {', '.join(names)}" for verb, names in rows.items() if names]
    return "\n".join(("reloaded", *lines)) if lines else "reloaded; nothing changed"


def _names(changes: dict[str, Any], verb: str) -> list[str]:
    return [
        f"{kind} {name}"
        for kind, table in (("source", "sources"), ("sink", "sinks"))
        for name in changes[table][verb]
    ]
