"""`relay audit`: changes by operators, with time and origin."""

from collections.abc import Mapping
from typing import Any

import click

from relay.cli import selection
from relay.cli.client import AdminClient, relay_command
from relay.cli.output import Output, moment

_DONE = 200


@click.group()
def audit() -> None:
    """List the changes that operators made."""


@audit.command("list")
@selection.since_option
@selection.until_option
@click.option("--operation", metavar="NAME", help="By this operation, such as pause_sink.")
@selection.before_option
@selection.limit_option
@relay_command
def list_(client: AdminClient, **query: Any) -> Output:
    """List the changes, newest first: done, refused and in progress.

    E-mail addresses are shown as digests; the same address has the same digest.
    """
    page = client.get("/audit", query)
    return Output(page, selection.page_lines(page, map(_row, page["changes"]), empty="No changes."))


def _row(change: dict[str, Any]) -> dict[str, object]:
    return {
        "ID": str(change["id"]),
        "WHEN": moment(change["begun_ms"]),
        "OPERATION": change["operation"],
        "TARGET": change["target"],
        "ASKED": _text(_readable(change["asked"])) or "-",
        "RESULT": _result(change),
        "BY": change["actor"],
        "ADDRESS": change["address"],
        "VIA": change["via"] or "-",
    }


def _readable(query: Mapping[str, Any]) -> dict[str, object]:
    """Format the times of a filter, which are in milliseconds."""
    return {
        name.removesuffix("_ms"): moment(value) if name in {"since_ms", "until_ms"} else value
        for name, value in query.items()
    }


def _result(change: dict[str, Any]) -> str:
    if change["ended_ms"] is None:
        return "unfinished: in progress, or interrupted"
    if change["status"] != _DONE:
        return f"refused: {change['status']}"
    result = change["result"]
    # Zeros and empty lists are left out if there are other values.
    some = {name: value for name, value in result.items() if value}
    numbers = {name: value for name, value in result.items() if not isinstance(value, list)}
    return _text(some or numbers) or "done"


def _text(values: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in values.items()
    )
