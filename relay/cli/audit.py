"""`relay audit`: changes by operators, with time and origin."""

from collections.abc import Mapping
from typing import Any

import click

from relay.cli.client import connected
from relay.cli.documents import print_json
from relay.cli.output import moment, show
from relay.cli.parameters import json_option
from relay.cli.selection import before_option, limit_option, show_next, since_option
from relay.cli.target import Target, relay_options

_DONE = 200


@click.group()
def audit() -> None:
    """List the changes that operators made."""


@audit.command("list")
@since_option
@before_option
@limit_option
@relay_options
@json_option
def list_(
    *, since_ms: int | None, before: int | None, limit: int, target: Target, as_json: bool
) -> None:
    """List the changes, newest first: done, refused and in progress.

    E-mail addresses are shown as digests; the same address has the same digest.
    """
    query = {"since_ms": since_ms, "before": before, "limit": limit}
    with connected(target) as client:
        page = client.get("/audit", query)
    if as_json:
        print_json(page)
        return
    show(
        ("ID", "WHEN", "OPERATION", "TARGET", "ASKED", "RESULT", "BY", "FROM", "VIA"),
        [_row(change) for change in page["changes"]],
        empty="No changes.",
    )
    show_next(page["next"])


def _row(change: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(change["id"]),
        moment(change["begun_ms"]),
        change["operation"],
        change["target"] or "-",
        _text(_readable(change["asked"])) or "-",
        _result(change),
        change["actor"] or "-",
        change["address"] or "-",
        change["via"] or "-",
    )


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
