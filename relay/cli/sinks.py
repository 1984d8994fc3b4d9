"""`relay sinks`: shows the sinks' state, and pauses, resumes, tests or retries them."""

from typing import Any
from urllib.parse import quote

import click

from relay.cli.client import AdminClient, JsonObject, relay_command
from relay.cli.completion import names_of
from relay.cli.output import (
    Output,
    ago,
    backlog_cells,
    check_failed,
    check_passed,
    deliveries,
    safe,
    table,
    waits_for,
)
from relay.cli.parameters import name_option
from relay.core.units import number

name_argument = click.argument("name", metavar="NAME", shell_complete=names_of("sink"))
source_option = name_option("source", "Its source, if several have this id.")


@click.group()
def sinks() -> None:
    """List the sinks; pause, resume or test one; retry or discard its pending deliveries."""


@sinks.command("list")
@relay_command
def list_(client: AdminClient) -> Output:
    """List every sink with its state and backlog.

    A sink that is "not configured" was removed from the config or renamed, and the store still
    has deliveries for it.
    """
    page = client.get("/sinks")
    return Output(page, table(map(_row, page["sinks"]), empty="The config has no sink."))


def _row(view: JsonObject) -> dict[str, object]:
    condition, now_ms = view["condition"], view.now_ms
    error, error_ms = condition["last_error"], condition["last_error_ms"]
    return {
        "SINK": condition["name"],
        "TYPE": condition["type"],
        "STATE": condition["state"],
        "PENDING": view["pending"],
        "OLDEST": ago(view["oldest_pending_ms"], now_ms=now_ms),
        "DEAD": view["dead"],
        **backlog_cells(condition, view["pending"], now_ms=now_ms),
        "WAITS FOR": waits_for(condition, now_ms=now_ms),
        "NEXT TRY": ago(condition["next_try_ms"], now_ms=now_ms),
        "LAST ERROR": None if error is None else f"{error} ({ago(error_ms, now_ms=now_ms)})",
    }


@sinks.command()
@name_argument
@relay_command
def pause(client: AdminClient, *, name: str) -> Output:
    """Hold a sink's deliveries until it is resumed, also over a restart."""
    view = client.post(_url(name, "pause"))
    return Output(view, [_state(view)])


@sinks.command()
@name_argument
@relay_command
def resume(client: AdminClient, *, name: str) -> Output:
    """Deliver to a paused sink again."""
    view = client.post(_url(name, "resume"))
    return Output(view, [_state(view)])


@sinks.command()
@name_argument
@click.option("--id", "id", metavar="ID", help="Only this event.")
@source_option
@relay_command
def retry(client: AdminClient, *, name: str, **selection: str | None) -> Output:
    """Make a sink's pending deliveries due now, and probe the sink at once.

    Events of an ordered sink that wait for an earlier one keep waiting for it.
    """
    result = client.post(_url(name, "retry"), selection)
    count = result["brought_forward"]
    late = f", with {deliveries(count)} that {'was' if count == 1 else 'were'} due later"
    tried = f"{name} is tried now{late if count else ''}"
    return Output(result, [safe(f"{tried}. {_state(result['sink'])}")])


@sinks.command()
@name_argument
@click.option("--id", "id", metavar="ID", required=True, help="The event's id.")
@source_option
@relay_command
def discard(client: AdminClient, *, name: str, **selection: str | None) -> Output:
    """Discard one pending delivery; `relay replay` can still deliver it.

    NAME may be a sink that is no longer in the config.
    """
    result = client.post(_url(name, "discard"), selection)
    late = " It is in flight, so it may still be delivered." if result["in_flight"] else ""
    return Output(result, [safe(f"{result['id']} of {result['source']} discarded.{late}")])


@sinks.command()
@name_argument
@click.option("--send", is_flag=True, help="Send a marked sample, which arrives.")
@click.option("--event", metavar="KIND", help="The sample's kind; default: the first it takes.")
@relay_command
def test(client: AdminClient, *, name: str, send: bool, event: str | None) -> Output:
    """Connect to a sink's destination, without sending an event or with a sample.

    A sample is marked as a test; it is not stored, and neither counted nor tried again.

    Exits 0 if it was reached, 1 if not, or if its response would fail an event.
    """
    if event is not None and not send:
        raise click.UsageError("--event names the sample that --send sends; give both.")
    body = {"event": event} if send else None
    result = client.post(_url(name, "sample" if send else "test"), body)
    if not result["reached"]:
        text = check_failed(result["reason"], result["status"], result["result"])
    elif send:
        text = safe(f"taken ({result['found']})")
    else:
        text = check_passed(result["found"])
    return Output(result, [f"{name}: {text}"], ok=result["reached"])


def _url(name: str, verb: str) -> str:
    return f"/sinks/{quote(name, safe='')}/{verb}"


def _state(view: dict[str, Any]) -> str:
    condition = view["condition"]
    return f"{condition['name']} is {condition['state']}, {number(view['pending'])} pending."
