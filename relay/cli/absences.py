"""`relay absences`: the relay's downtimes, and the events lost in them."""

from typing import Any

import click

from relay.cli.client import connected
from relay.cli.documents import print_json
from relay.cli.output import moment, show
from relay.cli.parameters import json_option
from relay.cli.selection import before_option, limit_option, show_next
from relay.cli.target import Target, relay_options
from relay.core.units import span


@click.group()
def absences() -> None:
    """List the relay's absences, or acknowledge one and its loss."""


@absences.command("list")
@before_option
@limit_option
@relay_options
@json_option
def list_(*, before: int | None, limit: int, target: Target, as_json: bool) -> None:
    """List the absences, newest first, each with the period from which events are lost."""
    with connected(target) as client:
        page = client.get("/absences", {"before": before, "limit": limit})
    if as_json:
        print_json(page)
        return
    show(
        ("ID", "FROM", "TO", "AWAY", "CAUSE", "LOST", "ACKNOWLEDGED"),
        [_row(absence) for absence in page["absences"]],
        empty="The relay was never away.",
    )
    show_next(page["next"])


def _row(absence: dict[str, Any]) -> tuple[str, ...]:
    lacks = absence["lacks"]
    lost = "nothing"
    if lacks is not None:
        length = span(lacks["to_ms"] - lacks["from_ms"])
        lost = f"first sent before {moment(lacks['to_ms'])}: {length}"
    return (
        str(absence["id"]),
        moment(absence["from_ms"]),
        moment(absence["to_ms"]),
        span(absence["to_ms"] - absence["from_ms"]),
        absence["cause"],
        lost,
        moment(absence["acknowledged_ms"]),
    )


@absences.command()
@click.argument("number", metavar="ID", type=click.IntRange(min=1))
@relay_options
@json_option
def acknowledge(*, number: int, target: Target, as_json: bool) -> None:
    """Acknowledge an absence: status, metrics and alerts no longer report its loss."""
    with connected(target) as client:
        absence = client.post(f"/absences/{number}/acknowledge")
    if as_json:
        print_json(absence)
        return
    click.echo(
        f"Absence {number}, {moment(absence['from_ms'])} to {moment(absence['to_ms'])}, "
        "is acknowledged."
    )
