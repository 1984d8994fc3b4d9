"""`relay events tail`: a relay's live activity, optionally from a moment in the past on."""

from collections.abc import Iterator
from typing import Any

import click

from relay.cli.client import connected
from relay.cli.output import flow, moment
from relay.cli.parameters import json_option, moment_option, name_option
from relay.cli.printing import Output
from relay.cli.target import Target, relay_options

_FIRST = ("sink", "status", "duration_ms", "reason")
"""Fields shown first; an id comes last, so that it can be copied whole."""


@click.command()
@name_option("sink", "Only activity of this sink.")
@click.option("--event", "kind", metavar="GLOB", help='Events of this kind, such as "video.*".')
@moment_option("since", "Start with the stored events and attempts since then.")
@relay_options
@json_option
def tail(*, target: Target, as_json: bool, **query: Any) -> None:
    """Print events, attempts and other activity live, until Ctrl-C."""
    with connected(target) as client:
        for activity in client.stream("/stream", query):
            Output(activity, flow(_parts(activity))).print(as_json=as_json)
    click.echo("The relay has stopped.", err=True)


def _parts(activity: dict[str, Any]) -> Iterator[str]:
    yield moment(activity["at_ms"])
    yield f"{activity['what']:10}"
    values = {name: activity[name] for name in _FIRST if name in activity} | activity
    for name, value in values.items():
        if name not in ("what", "at", "at_ms", "id") and value not in (None, "", []):
            yield _field(name, value)
    if activity.get("id"):
        yield f"id={activity['id']}"


def _field(name: str, value: Any) -> str:
    if isinstance(value, list):
        return f"{name}={','.join(map(str, value))}"
    if name == "duration_ms":
        return f"{value} ms"
    return f'{name}="{value}"' if " " in str(value) else f"{name}={value}"
