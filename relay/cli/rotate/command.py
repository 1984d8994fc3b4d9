"""The commands of `relay rotate`: a whole rotation, and its steps by hand."""

import time
from collections.abc import Iterator
from contextlib import suppress

import click

from relay.cli.client import (
    AdminClient,
    JsonObject,
    RelayTarget,
    connected,
    relay_command,
    relay_options,
)
from relay.cli.output import Output, moment, pairs, printing, when
from relay.cli.parameters import name_option, named, parse_duration, parsed
from relay.cli.private_file import SecretFile
from relay.cli.rotate.rotation import (
    Journal,
    RelaySide,
    RotationRun,
    counts,
    finished,
    rotation_path,
)
from relay.cli.sender_api import sender_api
from relay.config import load_sources
from relay.config.secret_files import secret_file
from relay.core.config_values import Duration

source_option = name_option("source", "The source whose secret changes.", required=True)

FOR_MAX = Duration.parse("1h")


def _length(text: str) -> Duration:
    length = parse_duration(text)
    if not 1000 <= length <= FOR_MAX:
        raise ValueError("expected 1s to 1h")
    return length


@click.group()
def rotate() -> None:
    """Change a source's secret without losing an event."""


@rotate.command()
@source_option
@click.option("--label", metavar="LABEL", help="Which of its secrets, where it has several.")
@relay_options
@printing
def run(*, target: RelayTarget, source: str, label: str | None) -> Output:
    """Rotate a source's secret through the sender's API, without losing an event.

    Run it again if it was interrupted: it says where it was, and goes on. It writes the new secret
    to the file behind the config's `file:`, so it runs where the relay does.
    """
    now_ms = time.time_ns() // 1_000_000
    settings = named("source", source, load_sources(target.config))
    sender = sender_api(target.config, source)
    path = secret_file(target.config, settings, label=label, now_ms=now_ms)
    with SecretFile.known(path) as file, connected(target) as client:
        rotation = RotationRun(
            sender,
            file,
            RelaySide(client, source),
            Journal(file.path, endpoint=sender.endpoint),
            say=_say,
        )
        try:
            return rotation.run(now_ms=now_ms)
        except KeyboardInterrupt:
            _say("interrupted: run the command again, and it goes on")
            raise


def _say(line: str) -> None:
    # On stderr, because stdout is for the result; a terminal that has gone stops no rotation.
    with suppress(OSError):
        click.echo(line, err=True)


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
def begin(client: AdminClient, *, source: str, length: Duration) -> Output:
    """Keep requests that match no secret of a source for a while; they are still refused.

    Begin before you change the secret at the sender. A second call extends the time.
    """
    view = client.post(rotation_path(source), {"duration_ms": int(length)})
    lines = (
        f"{source}: armed until {moment(view['until_ms'])}.",
        "Now rotate the secret at the sender, put the new one into the config, then run:",
        f"  relay rotate finish --source {source}",
    )
    return Output(view, lines)


@rotate.command()
@source_option
@relay_command
def finish(client: AdminClient, *, source: str) -> Output:
    """Reload the config, accept the kept requests that it verifies, and stop keeping others."""
    view = client.post(f"{rotation_path(source)}/finish")
    return Output(view, finished(source, view))


@rotate.command()
@source_option
@relay_command
def status(client: AdminClient, *, source: str) -> Output:
    """Show the state of a rotation."""
    view = client.get(rotation_path(source))
    return Output(view, _state(source, view))


def _state(source: str, view: JsonObject) -> Iterator[str]:
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
