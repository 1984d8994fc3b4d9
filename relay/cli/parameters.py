"""Values on the command line, moments among them, and options that several commands share."""

import math
import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from relay.cli.completion import names_of
from relay.core.config_values import Duration, Rate

_DURATION = re.compile(r"(?:[0-9]{1,9}(?:ms|s|m|h|d))+")
_PART = re.compile(r"[0-9]+[a-z]+")
_UNIX = re.compile(r"([0-9]{9,10}(?:\.[0-9]{1,9})?)|([0-9]{12,13})")
"""Seconds of the years 1973 to 2286, or milliseconds of the same years."""

_CLOCK = re.compile(r"(?:(today|yesterday)\s+)?([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_DAYS_BACK = {"today": 0, "yesterday": 1}

EXPECTED = (
    'expected how long ago ("7d", "1h30m"), "yesterday", a time of day ("11:18"), '
    "a date (2026-11-02, 2026-11-02T09:30Z) or a Unix time"
)


def parse_moment(text: str) -> int:
    """Parse a moment to milliseconds since the epoch; raises ValueError."""
    return parse_moment_at(text, now=datetime.now().astimezone())


def parse_moment_at(text: str, *, now: datetime) -> int:
    """Parse a moment relative to `now`; without a zone it is local time."""
    text = text.strip()
    unix = _UNIX.fullmatch(text)
    if unix:
        return round(float(unix[1]) * 1000) if unix[1] else int(unix[2])
    try:
        return round(_moment(text, now).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ValueError(EXPECTED) from None


def parse_duration(text: str) -> Duration:
    """Parse a duration such as `90s` or `1h30m`; raises ValueError."""
    if _DURATION.fullmatch(text) is None:
        return Duration.parse(text)
    return Duration(sum(Duration.parse(part) for part in _PART.findall(text)))


def _moment(text: str, now: datetime) -> datetime:
    if _DURATION.fullmatch(text):
        return now - timedelta(milliseconds=parse_duration(text))
    if text == "now":
        return now
    if text in _DAYS_BACK:
        return _on_day(now, _DAYS_BACK[text], (0, 0, 0))
    clock = _CLOCK.fullmatch(text)
    if clock:
        at = (int(clock[2]), int(clock[3]), int(clock[4] or 0))
        return _on_day(now, _DAYS_BACK[clock[1]], at) if clock[1] else _last(now, at)
    return datetime.fromisoformat(text)


def _last(now: datetime, at: tuple[int, int, int]) -> datetime:
    """Return the latest past moment with this time of day: after midnight, 23:50 was yesterday."""
    today = _on_day(now, 0, at)
    return today if today <= now else _on_day(now, 1, at)


def _on_day(now: datetime, days_back: int, at: tuple[int, int, int]) -> datetime:
    hour, minute, second = at
    day = now.replace(tzinfo=None) - timedelta(days=days_back)
    local = day.replace(hour=hour, minute=minute, second=second, microsecond=0)
    return local.astimezone()


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
        f"--{name}", f"{name}_ms", metavar="WHEN", callback=parsed(parse_moment), help=text
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
