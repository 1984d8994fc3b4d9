"""`relay absences`: the relay's downtimes, and the events lost in them."""

from typing import Any

import click

from relay.cli.client import AdminClient, relay_command
from relay.cli.output import Output, moment
from relay.cli.parameters import WholeNumber
from relay.cli.selection import before_option, limit_option, page_lines
from relay.core.units import duration


@click.group()
def absences() -> None:
    """List the relay's absences, or acknowledge one and its loss."""


@absences.command("list")
@before_option
@limit_option
@relay_command
def list_(client: AdminClient, **query: Any) -> Output:
    """List the absences, newest first, each with the period from which events are lost."""
    page = client.get("/absences", query)
    rows = map(_row, page["absences"])
    return Output(page, page_lines(page, rows, empty="The relay was never away."))


def _row(absence: dict[str, Any]) -> dict[str, object]:
    lacks = absence["lacks"]
    lost = "nothing"
    if lacks is not None:
        length = duration(lacks["to_ms"] - lacks["from_ms"])
        lost = f"first sent before {moment(lacks['to_ms'])}: {length}"
    return {
        "ID": str(absence["id"]),
        "FROM": moment(absence["from_ms"]),
        "TO": moment(absence["to_ms"]),
        "AWAY": duration(absence["to_ms"] - absence["from_ms"]),
        "CAUSE": absence["cause"],
        "LOST": lost,
        "ACKNOWLEDGED": moment(absence["acknowledged_ms"]),
    }


@absences.command()
@click.argument("number", metavar="ID", type=WholeNumber(min=1))
@relay_command
def acknowledge(client: AdminClient, *, number: int) -> Output:
    """Acknowledge an absence: status, metrics and alerts no longer report its loss."""
    absence = client.post(f"/absences/{number}/acknowledge")
    period = f"{moment(absence['from_ms'])} to {moment(absence['to_ms'])}"
    return Output(absence, [f"Absence {number}, {period}, is acknowledged."])
