"""Types of command-line values, and options that several commands share."""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from relay.cli import moments
from relay.cli.completion import names_of
from relay.core.config_values import Rate

Callback = Callable[[click.Context, click.Parameter, str | None], Any]
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

config_option = click.option(
    "--config",
    "path",
    # An unreadable file is a config error, not a usage error.
    type=click.Path(path_type=Path, readable=False),
    help="The config; default $RELAY_CONFIG, else ./config.toml.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask, as without a terminal.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask at a terminal before an irreversible change; anything but yes aborts the command."""
    if not yes and _is_at_terminal():
        click.confirm(question, abort=True, err=True)


def _is_at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def name_option(table: str, text: str, *, required: bool = False) -> Decorator:
    """Create `--sink` or `--source`, completed from the config; `text` is its help."""
    return click.option(
        f"--{table}", metavar="NAME", required=required, shell_complete=names_of(table), help=text
    )


def moment_option(name: str, text: str) -> Decorator:
    """Create an option for a moment, passed as `NAME_ms`; `text` is its help."""
    return click.option(
        f"--{name}", f"{name}_ms", metavar="WHEN", callback=parsed(moments.parse), help=text
    )


class NumberRange(click.FloatRange):
    """A number in a range; click itself accepts "nan" in every range."""

    name = "number"  # of the type, in errors and in the help

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class WholeNumber(click.IntRange):
    """A whole number in a range; click itself calls the type "integer range" in errors."""

    name = "integer"


def parsed(parse: Callable[[str], Any]) -> Callback:
    """Turn a parser into an option's callback; the text of its ValueError is shown."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return callback


def per_second(text: str) -> float:
    """Parse a rate such as `20`, `0.5`, `"30/m"` or `"100/h"`; raises ValueError."""
    if "/" in text:
        return float(Rate.parse(text))
    number = float(text) if text.replace(".", "", 1).isdecimal() else 0.0
    if not number > 0:
        raise ValueError('expected events per second such as 20 or 0.5, or "30/m" or "100/h"')
    return number


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Settings = TypeVar("Settings", bound=_Named)


def named(table: str, name: str, settings: Sequence[Settings]) -> Settings:
    """Return the sink or source with this name; raises BadParameter if there is none."""
    for candidate in settings:
        if candidate.name == name:
            return candidate
    known = ", ".join(candidate.name for candidate in settings) or "none"
    raise click.BadParameter(
        f"the config has no {table} `{name}`; expected one of: {known}", param_hint=f"--{table}"
    )
