"""`relay events tail`: a relay's live activity, optionally from a moment in the past on."""

from typing import Any

import click

from relay.cli.client import connected
from relay.cli.completion import names_of
from relay.cli.documents import print_json
from relay.cli.moments import parse
from relay.cli.output import flow, moment
from relay.cli.parameters import json_option, parsed
from relay.cli.target import Target, relay_options

_FIRST = ("sink", "status", "duration_ms", "reason")
"""Fields shown first; an id comes last, so that it can be copied whole."""


@click.command()
@click.option(
    "--sink", metavar="NAME", shell_complete=names_of("sink"), help="Only activity of this sink."
)
@click.option("--event", "kind", metavar="GLOB", help='Events of this kind, such as "video.*".')
@click.option(
    "--since",
    "since_ms",
    metavar="WHEN",
    callback=parsed(parse),
    help="Start with the stored events and attempts since then.",
)
@relay_options
@json_option
def tail(*, target: Target, as_json: bool, **query: Any) -> None:
    """Print events, attempts and other activity live, until Ctrl-C."""
    with connected(target) as client:
        for activity in client.stream("/stream", query):
            if as_json:
                print_json(activity)
            else:
                _show(activity)
    click.echo("The relay has stopped.", err=True)


def _show(activity: dict[str, Any]) -> None:
    values = {name: activity[name] for name in _FIRST if name in activity} | activity
    fields = [
        _field(name, value)
        for name, value in values.items()
        if name not in ("what", "at", "at_ms", "id") and value not in (None, "", [])
    ]
    if activity.get("id"):
        fields.append(f"id={activity['id']}")
    flow([moment(activity["at_ms"]), f"{activity['what']:10}", *fields])


def _field(name: str, value: Any) -> str:
    if isinstance(value, list):
        return f"{name}={','.join(map(str, value))}"
    if name == "duration_ms":
        return f"{value} ms"
    return f'{name}="{value}"' if " " in str(value) else f"{name}={value}"
