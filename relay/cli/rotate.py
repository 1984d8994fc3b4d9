"""`relay rotate`: changes a source's secret without losing events signed with the new one."""

import time
from typing import Any
from urllib.parse import quote

import click

from relay.cli.client import connected
from relay.cli.completion import names_of
from relay.cli.documents import print_json
from relay.cli.moments import duration
from relay.cli.output import ago, moment, pairs
from relay.cli.parameters import json_option, parsed
from relay.cli.target import Target, relay_options
from relay.core.config_values import Duration

source_option = click.option(
    "--source",
    "name",
    required=True,
    metavar="NAME",
    shell_complete=names_of("source"),
    help="The source whose secret changes.",
)


FOR_MAX = Duration.parse("1h")


def _length(text: str) -> Duration:
    length = duration(text)
    if not 1000 <= length <= FOR_MAX:
        raise ValueError("expected 1s to 1h")
    return length


@click.group()
def rotate() -> None:
    """Change a source's secret without losing an event."""


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
@relay_options
@json_option
def begin(*, name: str, length: Duration, target: Target, as_json: bool) -> None:
    """Keep requests that match no secret of a source for a while; they are still refused.

    Begin before you change the secret at the sender. A second call extends the time.
    """
    with connected(target) as client:
        view = client.post(_url(name), {"duration_ms": int(length)})
    if as_json:
        print_json(view)
        return
    click.echo(f"{name}: armed until {moment(view['until_ms'])}.")
    click.echo("Now rotate the secret at the sender, put the new one into the config, then run:")
    click.echo(f"  relay rotate finish --source {name}")


@rotate.command()
@source_option
@relay_options
@json_option
def finish(*, name: str, target: Target, as_json: bool) -> None:
    """Reload the config, accept the kept requests that it verifies, and stop keeping others."""
    with connected(target) as client:
        view = client.post(f"{_url(name)}/finish")
    if as_json:
        print_json(view)
        return
    click.echo(f"{name}: finished")
    pairs(_counts(view), indent="  ")
    if view["waiting"]:
        click.echo(
            f"Unverified requests match no secret of {name}: they are forged, or signed with a "
            f"secret that is not in the config. They are kept until {moment(view['expires_ms'])}; "
            "if a secret is wrong, correct it and run finish again."
        )


@rotate.command()
@source_option
@relay_options
@json_option
def status(*, name: str, target: Target, as_json: bool) -> None:
    """Show the state of a rotation."""
    with connected(target) as client:
        view = client.get(_url(name))
    if as_json:
        print_json(view)
        return
    if view["state"] == "none":
        click.echo(f"{name}: no rotation, or it has expired.")
        return
    now_ms = time.time_ns() // 1_000_000
    click.echo(
        f"{name}: {'armed' if view['state'] == 'armed' else 'finished, keeps no further requests'}"
    )
    pairs(
        [
            ("begun", _when(view["begun_ms"], now_ms)),
            ("until", _when(view["until_ms"], now_ms)),
            ("expires", _when(view["expires_ms"], now_ms)),
            *_counts(view),
        ],
        indent="  ",
    )


def _url(name: str) -> str:
    return f"/sources/{quote(name, safe='')}/rotation"


def _when(ms: int, now_ms: int) -> str:
    return f"{moment(ms)}, {ago(ms, now_ms=now_ms)}"


def _counts(view: dict[str, Any]) -> list[tuple[str, str]]:
    named = ("kept", "verified", "duplicates")
    counts = [(name, str(view[name])) for name in named]
    dropped = [("dropped", f"{view['dropped']}, over a limit")] if view["dropped"] else []
    return [*counts, ("unverified", str(view["waiting"])), *dropped]
