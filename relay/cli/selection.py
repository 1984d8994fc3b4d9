"""The options that say which stored events are meant."""

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from relay.cli import moments
from relay.cli.completion import names_of
from relay.cli.parameters import parsed
from relay.store.desk import Outcome

Command = TypeVar("Command", bound=Callable[..., Any])


since_option = click.option(
    "--since",
    "since_ms",
    metavar="WHEN",
    callback=parsed(moments.parse),
    help='Since then: "1h30m" ago, "yesterday", "11:18", a date or a Unix time.',
)
_OPTIONS = (
    click.option("--id", "id", metavar="ID", help="The event's id."),
    click.option(
        "--source", metavar="NAME", shell_complete=names_of("source"), help="Of this source."
    ),
    click.option("--event", "kind", metavar="GLOB", help='Of this kind, such as "video.*".'),
    since_option,
    click.option(
        "--until",
        "until_ms",
        metavar="WHEN",
        callback=parsed(moments.parse),
        help="Received before.",
    ),
    click.option("--video", metavar="ID", help="About this video."),
    click.option("--email", metavar="ADDRESS", help="Of this lead or viewer."),
    click.option(
        "--sink",
        metavar="NAME",
        shell_complete=names_of("sink"),
        help="Of this sink's deliveries.",
    ),
)
_OUTCOME = click.option(
    "--outcome",
    type=click.Choice(get_args(Outcome)),
    help="With such a delivery; missed: neither delivered nor pending.",
)
_REASON = click.option("--reason", metavar="TEXT", help="Dead for a reason that contains this.")


def selection_options(command: Command) -> Command:
    """Which events, and what became of them."""
    for option in reversed((*_OPTIONS, _OUTCOME, _REASON)):
        command = option(command)
    return command


def dead_letter_options(command: Command) -> Command:
    """Which dead letters."""
    for option in reversed((*_OPTIONS, _REASON)):
        command = option(command)
    return command
