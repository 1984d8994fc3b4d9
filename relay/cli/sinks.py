"""`relay sinks`: shows the sinks' state, and pauses, resumes, tests or retries them."""

import time
from typing import Any
from urllib.parse import quote

import click

from relay.cli import contact
from relay.cli.client import connected
from relay.cli.completion import names_of
from relay.cli.documents import print_json
from relay.cli.output import ago, safe, show
from relay.cli.parameters import json_option
from relay.cli.target import Target, relay_options

name_argument = click.argument("name", metavar="NAME", shell_complete=names_of("sink"))


@click.group()
def sinks() -> None:
    """List the sinks; pause, resume or test one; retry or discard its pending deliveries."""


@sinks.command("list")
@relay_options
@json_option
def list_(*, target: Target, as_json: bool) -> None:
    """List every sink with its state and backlog.

    A sink that is "not configured" was removed from the config or renamed, and the store still
    has deliveries for it.
    """
    with connected(target) as client:
        page = client.get("/sinks")
    if as_json:
        print_json(page)
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
        [_row(sink, now_ms=now_ms) for sink in page["sinks"]],
        empty="The config has no sink.",
    )


def _row(view: dict[str, Any], *, now_ms: int) -> tuple[str, ...]:
    condition = view["condition"]
    error, error_ms = condition["last_error"], condition["last_error_ms"]
    return (
        condition["name"],
        condition["type"] or "-",
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
    """Hold a sink's deliveries until it is resumed, also over a restart."""
    _change(target, _url(name, "pause"), as_json=as_json)


@sinks.command()
@name_argument
@relay_options
@json_option
def resume(*, name: str, target: Target, as_json: bool) -> None:
    """Deliver to a paused sink again."""
    _change(target, _url(name, "resume"), as_json=as_json)


@sinks.command()
@name_argument
@click.option("--id", "id", metavar="ID", help="Only this event.")
@click.option("--source", metavar="NAME", help="Its source, if several have this id.")
@relay_options
@json_option
def retry(*, name: str, target: Target, as_json: bool, **selection: str | None) -> None:
    """Make a sink's pending deliveries due now, and probe the sink at once.

    Events of an ordered sink that wait for an earlier one keep waiting for it.
    """
    with connected(target) as client:
        result = client.post(_url(name, "retry"), selection)
    if as_json:
        print_json(result)
        return
    click.echo(f"{_count(result['brought_forward'])} due now. {_state_text(result['sink'])}")


@sinks.command()
@name_argument
@click.option("--id", "id", metavar="ID", required=True, help="The event's id.")
@click.option("--source", metavar="NAME", help="Its source, if several have this id.")
@relay_options
@json_option
def discard(*, name: str, target: Target, as_json: bool, **selection: str | None) -> None:
    """Discard one pending delivery; `relay replay` can still deliver it.

    NAME may be a sink that is no longer in the config.
    """
    with connected(target) as client:
        result = client.post(_url(name, "discard"), selection)
    if as_json:
        print_json(result)
        return
    late = " It is in flight, so it may still be delivered." if result["in_flight"] else ""
    click.echo(safe(f"{result['id']} of {result['source']} discarded.") + late)


def _count(deliveries: int) -> str:
    return "1 delivery" if deliveries == 1 else f"{deliveries} deliveries"


def _url(name: str, verb: str) -> str:
    return f"/sinks/{quote(name, safe='')}/{verb}"


def _change(target: Target, url: str, *, as_json: bool) -> None:
    with connected(target) as client:
        view = client.post(url)
    if as_json:
        print_json(view)
        return
    click.echo(_state_text(view))


def _state_text(view: dict[str, Any]) -> str:
    condition = view["condition"]
    return f"{condition['name']} is {condition['state']}, {view['pending']} pending."


@sinks.command()
@name_argument
@relay_options
@json_option
@click.pass_context
def test(context: click.Context, *, name: str, target: Target, as_json: bool) -> None:
    """Connect to a sink's destination without sending an event.

    Exits 0 if it was reached, 1 if not, or if its response would fail an event.
    """
    with connected(target) as client:
        result = client.post(_url(name, "test"))
    if as_json:
        print_json(result)
    else:
        click.echo(f"{name}: {_contact_text(result)}")
    context.exit(0 if result["reached"] else 1)


def _contact_text(result: dict[str, Any]) -> str:
    if result["reached"]:
        return contact.reached(result["found"])
    return contact.failed(result["reason"], result["status"], result["result"])
