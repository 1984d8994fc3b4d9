"""`relay sinks`: how each is doing, and the operator's hand on it."""

import time
from typing import Any
from urllib.parse import quote

import click

from relay.cli import contact
from relay.cli.client import connected
from relay.cli.columns import ago, show
from relay.cli.completion import names_of
from relay.cli.documents import print_json
from relay.cli.parameters import json_option
from relay.cli.target import Target, relay_options

name_argument = click.argument("name", metavar="NAME", shell_complete=names_of("sink"))


@click.group()
def sinks() -> None:
    """Look at the sinks, pause, resume and test them."""


@sinks.command("list")
@relay_options
@json_option
def list_(*, target: Target, as_json: bool) -> None:
    """List every sink with its state and its backlog."""
    with connected(target) as client:
        found = client.get("/sinks")
    if as_json:
        print_json(found)
        return
    now_ms = time.time_ns() // 1_000_000
    show(
        (
            "SINK",
            "TYPE",
            "STATE",
            "PENDING",
            "OLDEST",
            "DEAD",
            "PER MINUTE",
            "NEXT TRY",
            "LAST ERROR",
        ),
        [_row(each, now_ms=now_ms) for each in found["sinks"]],
        empty="The config has no sink.",
    )


def _row(view: dict[str, Any], *, now_ms: int) -> tuple[str, ...]:
    condition = view["condition"]
    error, error_ms = condition["last_error"], condition["last_error_ms"]
    return (
        condition["name"],
        condition["type"],
        condition["state"],
        str(view["pending"]),
        ago(view["oldest_pending_ms"], now_ms=now_ms),
        str(view["dead"]),
        str(condition["delivered_last_minute"]),
        ago(condition["next_try_ms"], now_ms=now_ms),
        "-" if error is None else f"{error} ({ago(error_ms, now_ms=now_ms)})",
    )


@sinks.command()
@name_argument
@relay_options
@json_option
def pause(*, name: str, target: Target, as_json: bool) -> None:
    """Keep what comes for a sink until it is resumed, also over a restart."""
    _change(target, _url(name, "pause"), as_json=as_json)


@sinks.command()
@name_argument
@relay_options
@json_option
def resume(*, name: str, target: Target, as_json: bool) -> None:
    """Deliver to a sink again."""
    _change(target, _url(name, "resume"), as_json=as_json)


def _url(name: str, verb: str) -> str:
    return f"/sinks/{quote(name, safe='')}/{verb}"


def _change(target: Target, url: str, *, as_json: bool) -> None:
    with connected(target) as client:
        view = client.post(url)
    if as_json:
        print_json(view)
        return
    condition = view["condition"]
    click.echo(f"{condition['name']} is {condition['state']}, {view['pending']} pending.")


@sinks.command()
@name_argument
@relay_options
@json_option
@click.pass_context
def test(context: click.Context, *, name: str, target: Target, as_json: bool) -> None:
    """Reach a sink's far end without an event.

    Exits 0 if it was reached, 1 if not, or if its answer to an event would be a failure.
    """
    with connected(target) as client:
        found = client.post(_url(name, "test"))
    if as_json:
        print_json(found)
    else:
        click.echo(f"{name}: {_checked(found)}")
    context.exit(0 if found["reached"] else 1)


def _checked(found: dict[str, Any]) -> str:
    if found["reached"]:
        return contact.reached(found["found"])
    return contact.failed(found["reason"], found["status"], found["result"])
