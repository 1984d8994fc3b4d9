"""`relay events`: lists and shows stored events, and follows live activity."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import click

from relay.cli.client import AdminClient, JsonObject, relay_command
from relay.cli.output import Output, ago, moment, pairs, place_of, safe, when
from relay.cli.parameters import name_option
from relay.cli.selection import limit_option, page_lines, selection_options
from relay.cli.tail import tail
from relay.core.errors import AdminApiError
from relay.core.units import duration, number

_DAMAGED = " (damaged: it differs from the received body, and is not delivered)"
_UNQUEUED = {"ahead": 0, "is_more": False, "of_key": 0}


@click.group()
def events() -> None:
    """List or show stored events, or follow live activity."""


@events.command("list")
@selection_options
@limit_option
@relay_command
def list_(client: AdminClient, **query: Any) -> Output:
    """List stored events, newest first."""
    page = client.get("/events", query)
    return Output(page, page_lines(page, map(_row, page["events"]), empty="No event matches."))


def _row(event: JsonObject) -> dict[str, object]:
    deliveries = [f"{delivery['sink']} {delivery['status']}" for delivery in event["deliveries"]]
    return {
        "RECEIVED": moment(event["received_ms"]),
        "AGE": ago(event["received_ms"], now_ms=event.now_ms),
        "SOURCE": event["source"],
        "KIND": _kind(event),
        "ID": event["id"],
        "DELIVERIES": ", ".join(deliveries) or "no sink took it",
    }


def _kind(event: dict[str, Any]) -> str:
    """Return the kind, marked if the event was made by the relay."""
    if not event["reconstructed"]:
        return str(event["kind"])
    return f"{event['kind']} ({'superseded' if event['superseded'] else 'reconstructed'})"


@events.command("show")
@click.argument("event_id", metavar="ID")
@name_option("source", "Its source, if several have this id.")
@relay_command
def show_(client: AdminClient, *, event_id: str, source: str | None) -> Output:
    """Show one event: its body, its deliveries and every attempt.

    An unambiguous prefix of the ID is enough.
    """
    history = client.get(f"/events/{_number(client, event_id, source)}")
    sinks = client.get("/sinks")["sinks"]
    return Output(history, _history(history, [sink["condition"] for sink in sinks]))


def _number(client: AdminClient, beginning: str, source: str | None) -> int:
    if not beginning:
        raise click.UsageError("the ID is empty: give the event's id, or its beginning")
    matches = client.get("/events/find", {"beginning": beginning, "source": source})
    candidates, prefix = matches["events"], safe(beginning)
    if not candidates:
        raise AdminApiError(
            f"no event has an id that starts with {prefix}; to see the ids, run `relay events list`"
        )
    if len(candidates) == 1:
        return int(candidates[0]["seq"])
    if all(event["id"] == beginning for event in candidates):
        names = ", ".join(event["source"] for event in candidates)
        raise AdminApiError(
            f"several sources have the event {prefix}: add --source with one of {names}"
        )
    lines = [f"several ids start with {prefix}; give more characters:"]
    lines += [f"  {event['source']}  {event['kind']}  {event['id']}" for event in candidates]
    raise AdminApiError("\n".join([*lines, *(["  and more"] if matches["more"] else [])]))


def _history(history: JsonObject, conditions: Sequence[dict[str, Any]]) -> Iterator[str]:
    event = history["event"]
    yield from pairs(
        [
            ("event", event["id"]),
            ("source", event["source"]),
            ("kind", _kind(event)),
            ("created", event["created_at"] or "-"),
            ("received", when(event["received_ms"], now_ms=history.now_ms)),
        ]
    )
    yield "\ndeliveries"
    by_sink = {condition["name"]: condition for condition in conditions}
    queue = {queued["sink"]: queued for queued in history.get("queue", ())}
    for delivery in event["deliveries"]:
        sink = delivery["sink"]
        yield _delivery(delivery, by_sink.get(sink), queue.get(sink, _UNQUEUED))
        for attempt in history["attempts"]:
            if attempt["sink"] == delivery["sink"]:
                yield from _attempt(attempt)
    if not event["deliveries"]:
        yield "  none: no sink's route took it"
    yield f"\nbody{_DAMAGED if history['is_damaged'] else ''}"
    for line in _body(history["body"]):
        yield f"  {line}"


def _delivery(
    delivery: JsonObject, condition: dict[str, Any] | None, queued: dict[str, Any]
) -> str:
    state = delivery["status"]
    if state == "pending":
        state = f"pending, {_blocker(delivery, condition, queued)}"
    reason = f": {delivery['reason']}" if delivery["reason"] else ""
    return f"  {delivery['sink']}  {state}{safe(reason)}"


def _blocker(delivery: JsonObject, condition: dict[str, Any] | None, queued: dict[str, Any]) -> str:
    """Describe what a pending delivery waits for."""
    if condition is None:
        return "waits: the config has no such sink"
    state, next_ms = condition["state"], condition["next_try_ms"]
    due_ms, now_ms = delivery["due_ms"], delivery.now_ms
    if state == "paused":
        return "waits: sink is paused"
    if due_ms is None:
        count = queued["of_key"]
        return f"waits for {f'{number(count)} earlier events' if count > 1 else 'an earlier event'}"
    place = place_of(queued, condition)
    if due_ms > now_ms or (state == "active" and not place):
        return f"due {ago(due_ms, now_ms=now_ms)}"
    if state == "active":
        return f"waits {place}"
    soon = next_ms is None or next_ms <= now_ms
    text = f"waits: sink is {state}, next try {'now' if soon else ago(next_ms, now_ms=now_ms)}"
    return f"{text}, {place}" if place else text


def _attempt(attempt: dict[str, Any]) -> Iterator[str]:
    text = attempt["reason"] or str(attempt["status"] or "")
    replay = f"  replay {attempt['replay']}" if attempt["replay"] else ""
    took = duration(attempt["duration_ms"])
    line = f"{moment(attempt['started_ms'])}  {attempt['result']:9}  {took}  {text}"
    yield f"    {safe(line).rstrip()}{replay}"
    if attempt["answer"]:
        yield f"      answer: {safe(attempt['answer'])}"


def _body(body: str | None) -> list[str]:
    if body is None:
        return ["removed: its retention has expired, or it was erased"]
    try:
        text = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = body
    return [safe(line) for line in text.splitlines()]


events.add_command(tail)
