"""`relay reload`: the running relay reads its config again, and says what came of it."""

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
    """Have the running relay read its config again.

    Exits 0 if it is in use now, 1 if it was refused or no relay could be asked.
    """
    try:
        with connected(target) as client:
            changes = client.reload()
    except ConfigError as error:
        # Not even the way to the relay can be read from it, so it need not be asked.
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
    click.echo("\n".join(("refused; the relay goes on with the config that it has", *lines)))


def _summary(changes: dict[str, Any]) -> str:
    rows = {verb: _names(changes, verb) for verb in ("added", "changed", "removed")}
    rows["rerouted"] = [f"sink {name}" for name in changes["rerouted"]]
    rows["changed"] += changes["settings"]
    lines = [f"  {verb:8}  {', '.join(names)}" for verb, names in rows.items() if names]
    return "\n".join(("reloaded", *lines)) if lines else "reloaded; nothing has changed"


def _names(changes: dict[str, Any], verb: str) -> list[str]:
    return [
        f"{kind} {name}"
        for kind, table in (("source", "sources"), ("sink", "sinks"))
        for name in changes[table][verb]
    ]
