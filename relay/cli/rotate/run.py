"""`relay rotate run`: a whole rotation through the sender's API, which can be run again."""

import time
from contextlib import suppress

import click

from relay.cli.client import connected
from relay.cli.parameters import name_option, named
from relay.cli.printing import Output, printing
from relay.cli.private_file import SecretFile
from relay.cli.rotate.journal import Journal
from relay.cli.rotate.relay_side import RelaySide
from relay.cli.rotate.rotation import Rotation
from relay.cli.sender_api import sender_api
from relay.cli.target import Target, relay_options
from relay.config import load_sources
from relay.config.secret_files import secret_file


@click.command()
@name_option("source", "The source whose secret changes.", required=True)
@click.option("--label", metavar="LABEL", help="Which of its secrets, where it has several.")
@relay_options
@printing
def run(*, target: Target, source: str, label: str | None) -> Output:
    """Rotate a source's secret through the sender's API, without losing an event.

    Run it again if it was interrupted: it says where it was, and goes on. It writes the new secret
    to the file behind the config's `file:`, so it runs where the relay does.
    """
    now_ms = time.time_ns() // 1_000_000
    settings = named("source", source, load_sources(target.config))
    sender = sender_api(target.config, source)
    path = secret_file(target.config, settings, label=label, now_ms=now_ms)
    with SecretFile.known(path) as file, connected(target) as client:
        rotation = Rotation(
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
