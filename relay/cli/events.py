"""`relay events`: what is stored, all of one event, and what happens right now."""

import json
import time
from typing import Any

import click

from relay.cli.client import Client, connected
from relay.cli.columns import ago, moment, pairs, safe, show
from relay.cli.documents import print_json
from relay.cli.parameters import json_option
from relay.cli.selection import selection_options
from relay.cli.tail import tail
from relay.cli.target import Target, relay_options
from relay.errors import ApiError

limit_option = click.option(
    "--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="So many at most."
)


@click.group()
def events() -> None:
    """Look at stored events and at what happens."""


@events.command("list")
@selection_options
@limit_option
@relay_options
@json_option
def list_(*, target: Target, as_json: bool, limit: int, **selection: Any) -> None:
    """List stored events, the newest first."""
    with connected(target) as client:
        found = client.get("/events", {**selection, "limit": limit})
    if as_json:
        print_json(found)
        return
    now_ms = time.time_ns() // 1_000_000
    show(
        ("RECEIVED", "AGE", "SOURCE", "EVENT", "ID", "DELIVERIES"),
        [
            (
                moment(each["received_ms"]),
                ago(each["received_ms"], now_ms=now_ms),
                each["source"],
                each["kind"],
                each["id"],
                ", ".join(_delivery(one) for one in each["deliveries"]) or "no sink took it",
            )
            for each in found["events"]
        ],
        empty="No event fits.",
    )
    if found["next"] is not None:
        click.echo(f"There are more; --limit shows up to 500, --until {_until(found)} older ones.")


def _until(found: dict[str, Any]) -> str:
    return moment(found["events"][-1]["received_ms"]).replace(" ", "T")


def _delivery(delivery: dict[str, Any]) -> str:
    return f"{delivery['sink']} {delivery['status']}"


@events.command("show")
@click.argument("event_id", metavar="ID")
@click.option("--source", metavar="NAME", help="Where two sources know this id.")
@relay_options
@json_option
def show_(*, event_id: str, source: str | None, target: Target, as_json: bool) -> None:
    """Show one event: its body, its deliveries and every attempt."""
    with connected(target) as client:
        history = client.get(f"/events/{_number(client, event_id, source)}")
    if as_json:
        print_json(history)
        return
    event = history["event"]
    now_ms = time.time_ns() // 1_000_000
    received = f"{moment(event['received_ms'])}, {ago(event['received_ms'], now_ms=now_ms)}"
    pairs(
        [
            ("event", event["id"]),
            ("source", event["source"]),
            ("kind", event["kind"]),
            ("created", event["created_at"] or "-"),
            ("received", received),
        ]
    )
    click.echo("\ndeliveries")
    for delivery in event["deliveries"]:
        _show_delivery(delivery, history["attempts"], now_ms=now_ms)
    if not event["deliveries"]:
        click.echo("  none: no sink's route took it")
    click.echo("\nbody")
    for line in _body(history["body"]):
        click.echo(f"  {line}")


def _number(client: Client, event_id: str, source: str | None) -> int:
    found = client.get("/events", {"id": event_id, "source": source})["events"]
    if not found:
        raise ApiError(f"there is no event {safe(event_id)}")
    if len(found) > 1:
        names = ", ".join(each["source"] for each in found)
        raise ApiError(f"{safe(event_id)} came from several sources: say --source, one of {names}")
    return int(found[0]["seq"])


def _show_delivery(
    delivery: dict[str, Any], attempts: list[dict[str, Any]], *, now_ms: int
) -> None:
    due = f", due {ago(delivery['due_ms'], now_ms=now_ms)}" if delivery["due_ms"] else ""
    if delivery["status"] == "pending" and not due:
        due = ", waits for an earlier one"
    why = f": {delivery['reason']}" if delivery["reason"] else ""
    click.echo(f"  {delivery['sink']}  {delivery['status']}{due}{safe(why)}")
    for each in attempts:
        if each["sink"] != delivery["sink"]:
            continue
        said = each["reason"] or str(each["status"] or "")
        replay = f"  replay {each['replay']}" if each["replay"] else ""
        line = f"{moment(each['started_ms'])}  {each['result']:9}  {each['duration_ms']} ms  {said}"
        click.echo(f"    {safe(line).rstrip()}{replay}")


def _body(body: str | None) -> list[str]:
    if body is None:
        return ["forgotten: its retention is over, or it was erased"]
    try:
        text = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except ValueError:
        text = body
    return [safe(line) for line in text.splitlines()]


events.add_command(tail)
