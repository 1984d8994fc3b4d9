"""The group of `relay rotate`, and its commands for a rotation by hand."""

from collections.abc import Iterator
from urllib.parse import quote

import click

from relay.cli.client import Client, relay_command
from relay.cli.moments import duration
from relay.cli.output import moment, pairs, when
from relay.cli.parameters import name_option, parsed
from relay.cli.printing import Output
from relay.cli.responses import Document
from relay.cli.rotate.run import run
from relay.cli.rotate.view import counts, finished
from relay.core.config_values import Duration

source_option = name_option("source", "The source whose secret changes.", required=True)

FOR_MAX = Duration.parse("1h")


def _length(text: str) -> Duration:
    length = duration(text)
    if not 1000 <= length <= FOR_MAX:
        raise ValueError("expected 1s to 1h")
    return length


@click.group()
def rotate() -> None:
    """Change a source's secret without losing an event."""


rotate.add_command(run)


@rotate.command()
@source_option
@click.option(
    "--for",
    "length",
    default="15m",
    show_default=True,
    callback=parsed(_length),
    help="Duration, at most 1h.",
)
@relay_command
def begin(client: Client, *, source: str, length: Duration) -> Output:
    """Keep requests that match no secret of a source for a while; they are still refused.

    Begin before you change the secret at the sender. A second call extends the time.
    """
    view = client.post(_url(source), {"duration_ms": int(length)})
    lines = (
        f"{source}: armed until {moment(view['until_ms'])}.",
        "Now rotate the secret at the sender, put the new one into the config, then run:",
        f"  relay rotate finish --source {source}",
    )
    return Output(view, lines)


@rotate.command()
@source_option
@relay_command
def finish(client: Client, *, source: str) -> Output:
    """Reload the config, accept the kept requests that it verifies, and stop keeping others."""
    view = client.post(f"{_url(source)}/finish")
    return Output(view, finished(source, view))


@rotate.command()
@source_option
@relay_command
def status(client: Client, *, source: str) -> Output:
    """Show the state of a rotation."""
    view = client.get(_url(source))
    return Output(view, _state(source, view))


def _state(source: str, view: Document) -> Iterator[str]:
    if view["state"] == "none":
        yield f"{source}: no rotation, or it has expired."
        return
    state = "armed" if view["state"] == "armed" else "finished, keeps no further requests"
    yield f"{source}: {state}"
    times = [
        (name, when(view[f"{name}_ms"], now_ms=view.now_ms))
        for name in ("begun", "until", "expires")
    ]
    yield from pairs([*times, *counts(view)], indent="  ")


def _url(source: str) -> str:
    return f"/sources/{quote(source, safe='')}/rotation"
