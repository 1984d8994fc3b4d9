"""Options that select stored events, and the paging of lists."""

import shlex
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from relay.cli import moments
from relay.cli.completion import names_of
from relay.cli.parameters import parsed
from relay.core.config_values import Secret
from relay.store.selection import Outcome

Command = TypeVar("Command", bound=Callable[..., Any])

_TIMES = ("since_ms", "until_ms")

since_option = click.option(
    "--since",
    "since_ms",
    metavar="WHEN",
    callback=parsed(moments.parse),
    help='Received since: "1h30m" ago, "yesterday", "11:18", a date or a Unix time.',
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
        help="With a delivery to this sink.",
    ),
    click.option(
        "--outcome",
        type=click.Choice(get_args(Outcome)),
        help="With such a delivery; missed: not delivered to a sink whose route takes it.",
    ),
    click.option("--reason", metavar="TEXT", help="With a dead letter whose reason contains this."),
)
limit_option = click.option(
    "--limit",
    type=click.IntRange(1, 500),
    default=50,
    show_default=True,
    help="Maximum number of rows.",
)
before_option = click.option(
    "--before",
    metavar="CURSOR",
    type=click.IntRange(min=1),
    help="Continue a list; the previous page shows the value.",
)
all_option = click.option("--all", "everything", is_flag=True, help="Select all.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)


def selection_options(command: Command) -> Command:
    """Add the options that select events."""
    for option in reversed((*_OPTIONS, before_option)):
        command = option(command)
    return command


def require_one(selection: dict[str, Any], *, everything: bool) -> None:
    """Raise UsageError without any filter and without --all."""
    if not everything and all(value is None for value in selection.values()):
        raise click.UsageError(
            "nothing is selected: add --id, --since, --sink, --outcome missed ..., or --all"
        )


def show_next(cursor: int | None) -> None:
    """Print the command that shows the next page, unless this is the last one."""
    if cursor is not None:
        words = shlex.join([*_this_command(), "--before", str(cursor)])
        click.echo(f"Next page: {words}")


def _this_command() -> list[str]:
    """Return this command with its options, except for the cursor."""
    context = click.get_current_context()
    words = context.command_path.split()
    for option in context.command.params:
        name = option.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name != "before":
            words += [option.opts[0], _word(name, context.params[name])]
    return words


def _word(name: str, value: object) -> str:
    if name in _TIMES and isinstance(value, int):
        # As the parsed moment: "7d" would mean a later one by then.
        return datetime.fromtimestamp(value / 1000).astimezone().isoformat(timespec="milliseconds")
    return "REF" if isinstance(value, Secret) else str(value)
