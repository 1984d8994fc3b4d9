"""Options that select stored events, and the paging of lists."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import click
from click.core import ParameterSource

from relay.cli.client import JsonObject
from relay.cli.output import ago, local, table
from relay.cli.parameters import WholeNumber, moment_option, name_option
from relay.core.config_values import Secret
from relay.core.units import number
from relay.store.selection import Outcome

_TIMES = ("since_ms", "until_ms")

since_option = moment_option(
    "since", 'Received since: "1h30m" ago, "yesterday", "11:18", a date or a Unix time.'
)
until_option = moment_option("until", "Received before.")
before_option = click.option(
    "--before",
    metavar="CURSOR",
    type=WholeNumber(min=1),
    help="Continue a list; the previous page shows the value.",
)
limit_option = click.option(
    "--limit",
    type=WholeNumber(1, 500),
    default=50,
    show_default=True,
    help="Maximum number of rows.",
)
all_option = click.option("--all", "everything", is_flag=True, help="Select all.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)
_OPTIONS = (
    click.option("--id", "id", metavar="ID", help="The event's id."),
    click.option("--id-prefix", metavar="TEXT", help="With an id that begins with this."),
    name_option("source", "Of this source."),
    click.option("--event", "kind", metavar="GLOB", help='Of this kind, such as "video.*".'),
    since_option,
    until_option,
    click.option("--video", metavar="ID", help="About this video."),
    click.option("--email", metavar="ADDRESS", help="Of this lead or viewer."),
    click.option("--person", metavar="DIGEST", help="Of this lead or viewer, without the address."),
    click.option("--words", metavar="TEXT", help="With all of these words in the body."),
    name_option("sink", "With a delivery to this sink."),
    click.option(
        "--outcome",
        type=click.Choice(get_args(Outcome)),
        help="With such a delivery; missed: not delivered to a sink whose route takes it.",
    ),
    click.option("--reason", metavar="TEXT", help="With a dead letter whose reason contains this."),
    before_option,
)


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select events."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def require_one(selection: dict[str, Any], *, everything: bool) -> None:
    """Raise UsageError without any filter and without --all."""
    if not everything and all(value is None for value in selection.values()):
        raise click.UsageError(
            "nothing is selected: add --id, --since, --sink or another filter, or --all"
        )


def page_lines(page: Any, rows: Iterable[Mapping[str, object]], *, empty: str) -> Iterator[str]:
    """Yield the table of a page, and the command for the next page unless it is the last one."""
    yield from table(rows, empty=empty)
    if page["next"] is not None:
        words = shlex.join([*_this_command(), "--before", str(page["next"])])
        yield f"Next page: {words}"


def by_reason(
    reasons: Iterable[JsonObject], *, of: Literal["sink", "source"], empty: str = ""
) -> Iterator[str]:
    """Yield a table of counts by reason and by sink or source."""
    return table(
        (
            {
                "COUNT": reason["count"],
                "FIRST": ago(reason["first_ms"], now_ms=reason.now_ms),
                "LAST": ago(reason["last_ms"], now_ms=reason.now_ms),
                of.upper(): reason[of],
                "REASON": reason["reason"] or "-",
            }
            for reason in reasons
        ),
        empty=empty,
    )


def discardable(
    reasons: Sequence[JsonObject], *, of: Literal["sink", "source"], what: str
) -> Iterator[str]:
    """Yield what a discard would remove."""
    yield from by_reason(reasons, of=of, empty=f"Nothing to discard: no {what} matches.")
    if reasons:
        count = sum(reason["count"] for reason in reasons)
        yield f"{number(count)} in all; repeat without --dry-run to discard them."


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
        return local(value / 1000).isoformat(timespec="milliseconds")
    return "REF" if isinstance(value, Secret) else str(value)
