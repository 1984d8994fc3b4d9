"""`relay events`: lists and shows stored events, and follows live activity."""

import json
import time
from typing import Any

import click

from relay.cli.client import Client, connected
from relay.cli.documents import print_json
from relay.cli.output import ago, moment, pairs, safe, show
from relay.cli.parameters import json_option
from relay.cli.selection import limit_option, selection_options, show_next
from relay.cli.tail import tail
from relay.cli.target import Target, relay_options
from relay.core.errors import ApiError

_DAMAGED = " (damaged: it differs from the received body, and is not delivered)"


@click.group()
def events() -> None:
    """List or show stored events, or follow live activity."""


@events.command("list")
@selection_options
@limit_option
@relay_options
@json_option
def list_(*, target: Target, as_json: bool, limit: int, **selection: Any) -> None:
    """List stored events, newest first."""
    with connected(target) as client:
        page = client.get("/events", {**selection, "limit": limit})
    if as_json:
        print_json(page)
        return
    now_ms = time.time_ns() // 1_000_000
    show(
        ("RECEIVED", "AGE", "SOURCE", "EVENT", "ID", "DELIVERIES"),
        [
            (
                moment(event["received_ms"]),
                ago(event["received_ms"], now_ms=now_ms),
                event["source"],
                event["kind"],
                event["id"],
                ", ".join(_delivery(delivery) for delivery in event["deliveries"])
                or "no sink took it",
            )
            for event in page["events"]
        ],
        empty="No event matches.",
    )
    show_next(page["next"])


def _delivery(delivery: dict[str, Any]) -> str:
    return f"{delivery['sink']} {delivery['status']}"


@events.command("show")
@click.argument("event_id", metavar="ID")
@click.option("--source", metavar="NAME", help="Its source, if several have this id.")
@relay_options
@json_option
def show_(*, event_id: str, source: str | None, target: Target, as_json: bool) -> None:
    """Show one event: its body, its deliveries and every attempt.

    An unambiguous prefix of the ID is enough.
    """
    with connected(target) as client:
        history = client.get(f"/events/{_number(client, event_id, source)}")
        sinks = [sink["condition"] for sink in client.get("/sinks")["sinks"]]
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
    conditions = {sink["name"]: sink for sink in sinks}
    for delivery in event["deliveries"]:
        waits = _waits(delivery, conditions.get(delivery["sink"]), now_ms=now_ms)
        _show_delivery(delivery, history["attempts"], waits=waits)
    if not event["deliveries"]:
        click.echo("  none: no sink's route took it")
    click.echo(f"\nbody{_DAMAGED if history['is_damaged'] else ''}")
    for line in _body(history["body"]):
        click.echo(f"  {line}")


def _number(client: Client, beginning: str, source: str | None) -> int:
    matches = client.get("/events/find", {"beginning": beginning, "source": source})
    candidates, prefix = matches["events"], safe(beginning)
    if not candidates:
        raise ApiError(f"no event has an id that starts with {prefix}")
    if len(candidates) == 1:
        return int(candidates[0]["seq"])
    if all(event["id"] == beginning for event in candidates):
        names = ", ".join(event["source"] for event in candidates)
        raise ApiError(f"several sources have the event {prefix}: add --source with one of {names}")
    lines = [f"several ids start with {prefix}; give more characters:"]
    lines += [f"  {event['source']}  {event['kind']}  {event['id']}" for event in candidates]
    raise ApiError("\n".join([*lines, *(["  and more"] if matches["more"] else [])]))


def _waits(
    delivery: dict[str, Any], condition: dict[str, Any] | None, *, now_ms: int
) -> str | None:
    """Describe what a pending delivery waits for; None for a settled one."""
    if delivery["status"] != "pending":
        return None
    if condition is None:
        return "waits: the config has no such sink"
    due_ms, state, next_ms = delivery["due_ms"], condition["state"], condition["next_try_ms"]
    if state == "paused":
        return "waits: sink is paused"
    if due_ms is None:
        return "waits for an earlier event"
    if state == "active" or due_ms > now_ms:
        return f"due {ago(due_ms, now_ms=now_ms)}"
    soon = next_ms is None or next_ms <= now_ms
    return f"waits: sink is {state}, next try {'now' if soon else ago(next_ms, now_ms=now_ms)}"


def _show_delivery(
    delivery: dict[str, Any], attempts: list[dict[str, Any]], *, waits: str | None
) -> None:
    state = delivery["status"] if waits is None else f"{delivery['status']}, {waits}"
    why = f": {delivery['reason']}" if delivery["reason"] else ""
    click.echo(f"  {delivery['sink']}  {state}{safe(why)}")
    for attempt in attempts:
        if attempt["sink"] != delivery["sink"]:
            continue
        text = attempt["reason"] or str(attempt["status"] or "")
        replay = f"  replay {attempt['replay']}" if attempt["replay"] else ""
        took = f"{attempt['duration_ms']} ms"
        line = f"{moment(attempt['started_ms'])}  {attempt['result']:9}  {took}  {text}"
        click.echo(f"    {safe(line).rstrip()}{replay}")
        if attempt["answer"]:
            click.echo(f"      answer: {safe(attempt['answer'])}")


def _body(body: str | None) -> list[str]:
    if body is None:
        return ["removed: its retention has expired, or it was erased"]
    try:
        text = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = body
    return [safe(line) for line in text.splitlines()]


events.add_command(tail)
