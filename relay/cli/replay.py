"""`relay replay` and `relay replays`: deliver stored events again."""

import sys
import time
from collections import Counter
from typing import Any

import click

from relay.cli.client import Client, connected
from relay.cli.documents import print_json
from relay.cli.output import ago, moment, show
from relay.cli.parameters import json_option
from relay.cli.selection import (
    all_option,
    before_option,
    dry_run_option,
    limit_option,
    require_one,
    selection_options,
    show_next,
)
from relay.cli.target import Target, relay_options
from relay.core.errors import ApiError

POLL_INTERVAL_S = 0.5

_HEADS = {"kind": "EVENT", "sink": "SINK", "reason": "REASON"}

number_argument = click.argument("number", metavar="NUMBER", type=click.IntRange(min=1))


@click.command()
@selection_options
@all_option
@dry_run_option
@relay_options
@json_option
def replay(
    *, target: Target, as_json: bool, dry_run: bool, everything: bool, **selection: Any
) -> None:
    """Deliver stored events again, delivered before or not, to the sinks whose routes take them.

    The relay continues the replay if this command ends, and after a restart;
    `relay replays cancel` ends it. New events go first, and each sink's rate limit holds.
    """
    require_one(selection, everything=everything)
    with connected(target) as client:
        if dry_run:
            show_estimate(client, selection, by=("kind", "sink"), as_json=as_json)
        else:
            follow(client, {**selection, "all": everything}, as_json=as_json)


@click.group()
def replays() -> None:
    """List replays, or watch or cancel one."""


@replays.command("list")
@before_option
@limit_option
@relay_options
@json_option
def list_(*, target: Target, as_json: bool, before: int | None, limit: int) -> None:
    """List replays, newest first."""
    with connected(target) as client:
        page = client.get("/replays", {"before": before, "limit": limit})
    if as_json:
        print_json(page)
        return
    now_ms = time.time_ns() // 1_000_000
    show(
        ("NUMBER", "BEGUN", "AGE", "STATE", "DONE", "WHICH"),
        [
            (
                str(replay["id"]),
                moment(replay["created_ms"]),
                ago(replay["created_ms"], now_ms=now_ms),
                replay["state"],
                f"{replay['done']} of {replay['total']}",
                _which(replay["selection"]),
            )
            for replay in page["replays"]
        ],
        empty="There are no replays.",
    )
    show_next(page["next"])


@replays.command()
@number_argument
@relay_options
@json_option
def watch(*, number: int, target: Target, as_json: bool) -> None:
    """Show the progress of a replay until it ends."""
    with connected(target) as client:
        _watch(client, client.get(f"/replays/{number}"), as_json=as_json)


@replays.command()
@number_argument
@relay_options
@json_option
def cancel(*, number: int, target: Target, as_json: bool) -> None:
    """End a replay; its deliveries that are not in flight return to their previous state."""
    with connected(target) as client:
        replay = client.post(f"/replays/{number}/cancel")
    if as_json:
        print_json(replay)
    else:
        click.echo(f"Replay {number} is {replay['state']}: {_progress(replay)}.")


def follow(client: Client, order: dict[str, Any], *, as_json: bool) -> None:
    """Start a replay, and show its progress until it ends."""
    begun = client.post("/replays", order)
    if not as_json:
        click.echo(f"Replay {begun['id']}: {_deliveries(begun['total'])}.")
    _watch(client, begun, as_json=as_json)


def show_estimate(
    client: Client, selection: dict[str, Any], *, by: tuple[str, ...], as_json: bool
) -> None:
    """Show the number of deliveries of a replay, by some of `kind`, `sink` and `reason`."""
    estimate = client.post("/replays/count", selection)
    if as_json:
        print_json(estimate)
        return
    counts: Counter[tuple[str, ...]] = Counter()
    for share in estimate["shares"]:
        counts[tuple(share[name] or "-" for name in by)] += share["count"]
    show(
        ("DELIVERIES", *(_HEADS[name] for name in by)),
        [(str(count), *named) for named, count in sorted(counts.items())],
        empty=f"Nothing to replay: {estimate['nothing']}.",
    )
    if counts:
        click.echo(f"{estimate['total']} in all; repeat without --dry-run to deliver them.")


def _watch(client: Client, replay: dict[str, Any], *, as_json: bool) -> None:
    hidden = as_json or not sys.stdout.isatty()
    try:
        with click.progressbar(
            length=replay["total"], label="delivered", show_pos=True, hidden=hidden
        ) as bar:
            while replay["state"] == "running":
                time.sleep(POLL_INTERVAL_S)
                before, replay = replay, client.get(f"/replays/{replay['id']}")
                bar.update(replay["done"] - before["done"])
    except (KeyboardInterrupt, click.Abort):
        raise ApiError(
            f"the replay continues in the relay; `relay replays cancel {replay['id']}` ends it"
        ) from None
    if as_json:
        print_json(replay)
    else:
        click.echo(f"{replay['state']}: {_progress(replay)}.")


def _progress(replay: dict[str, Any]) -> str:
    text = f"{replay['done']} of {_deliveries(replay['total'])} settled"
    return f"{text}, {replay['under_way']} in progress" if replay["under_way"] else text


def _deliveries(count: int) -> str:
    return "1 delivery" if count == 1 else f"{count} deliveries"


def _which(selection: dict[str, Any]) -> str:
    filters = {name: value for name, value in selection.items() if value is not None}
    times: dict[str, object] = {
        name: moment(filters[name]) for name in ("since_ms", "until_ms") if name in filters
    }
    # The address is personal data, so it is not shown to other operators.
    named: dict[str, object] = {**filters, **times}
    if "email" in named:
        named["email"] = "..."
    return " ".join(f"{name.removesuffix('_ms')}={value}" for name, value in named.items()) or "all"
