"""`relay replay` and `relay replays`: deliver stored events again."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from relay.cli.client import AdminClient, JsonObject, relay_command
from relay.cli.output import Output, ago, deliveries, moment, table
from relay.cli.parameters import WholeNumber
from relay.cli.selection import (
    all_option,
    before_option,
    dry_run_option,
    limit_option,
    page_lines,
    require_one,
    selection_options,
)
from relay.core.errors import AdminApiError
from relay.core.units import number

POLL_INTERVAL_S = 0.5

_HEADS = {"kind": "KIND", "sink": "SINK", "reason": "REASON"}

number_argument = click.argument("number", metavar="NUMBER", type=WholeNumber(min=1))


@click.command()
@selection_options
@all_option
@dry_run_option
@relay_command
def replay(client: AdminClient, *, dry_run: bool, everything: bool, **selection: Any) -> Output:
    """Deliver stored events again, delivered before or not, to the sinks whose routes take them.

    The relay continues the replay if this command ends, and after a restart;
    `relay replays cancel` ends it. New events go first, and each sink's rate limit holds.
    """
    require_one(selection, everything=everything)
    if dry_run:
        return estimate(client, selection, by=("kind", "sink"))
    return follow(client, {**selection, "all": everything})


@click.group()
def replays() -> None:
    """List replays, or watch or cancel one."""


@replays.command("list")
@before_option
@limit_option
@relay_command
def list_(client: AdminClient, **query: Any) -> Output:
    """List replays, newest first."""
    page = client.get("/replays", query)
    return Output(page, page_lines(page, map(_row, page["replays"]), empty="There are no replays."))


def _row(replay: JsonObject) -> dict[str, object]:
    return {
        "NUMBER": str(replay["id"]),
        "BEGUN": moment(replay["created_ms"]),
        "AGE": ago(replay["created_ms"], now_ms=replay.now_ms),
        "STATE": replay["state"],
        "DONE": f"{number(replay['done'])} of {number(replay['total'])}",
        "WHICH": _which(replay["selection"]),
    }


@replays.command()
@number_argument
@relay_command
def watch(client: AdminClient, *, number: int) -> Output:
    """Show the progress of a replay until it ends."""
    return _watch(client, client.get(f"/replays/{number}"))


@replays.command()
@number_argument
@relay_command
def cancel(client: AdminClient, *, number: int) -> Output:
    """End a replay; its deliveries that are not in flight return to their previous state."""
    replay = client.post(f"/replays/{number}/cancel")
    return Output(replay, [f"Replay {number} is {replay['state']}: {_progress(replay)}."])


def follow(client: AdminClient, order: dict[str, Any]) -> Output:
    """Start a replay, and show its progress on stderr until it ends."""
    replay = client.post("/replays", order)
    click.echo(f"Replay {replay['id']}: {deliveries(replay['total'])}.", err=True)
    return _watch(client, replay)


def estimate(client: AdminClient, selection: dict[str, Any], *, by: tuple[str, ...]) -> Output:
    """Count the deliveries of a replay, by some of `kind`, `sink` and `reason`."""
    result = client.post("/replays/count", selection)
    return Output(result, _shares(result, by))


def _shares(result: dict[str, Any], by: tuple[str, ...]) -> Iterator[str]:
    counts: Counter[tuple[str, ...]] = Counter()
    for share in result["shares"]:
        counts[tuple(share[name] or "-" for name in by)] += share["count"]
    heads = [_HEADS[name] for name in by]
    yield from table(
        (
            {"DELIVERIES": count, **dict(zip(heads, names, strict=True))}
            for names, count in sorted(counts.items())
        ),
        empty=f"Nothing to replay: {result['nothing']}.",
    )
    if counts:
        yield f"{number(result['total'])} in all; repeat without --dry-run to deliver them."


def _watch(client: AdminClient, replay: dict[str, Any]) -> Output:
    try:
        with click.progressbar(
            length=replay["total"],
            label="delivered",
            show_pos=True,
            file=sys.stderr,
            hidden=not sys.stderr.isatty(),
        ) as bar:
            while replay["state"] == "running":
                time.sleep(POLL_INTERVAL_S)
                before, replay = replay, client.get(f"/replays/{replay['id']}")
                bar.update(replay["done"] - before["done"])
    except (KeyboardInterrupt, click.Abort):
        raise AdminApiError(
            f"the replay continues in the relay; `relay replays cancel {replay['id']}` ends it"
        ) from None
    return Output(replay, [f"{replay['state']}: {_progress(replay)}."])


def _progress(replay: dict[str, Any]) -> str:
    text = f"{number(replay['done'])} of {deliveries(replay['total'])} settled"
    return f"{text}, {number(replay['under_way'])} in progress" if replay["under_way"] else text


def _which(selection: dict[str, Any]) -> str:
    filters = {name: value for name, value in selection.items() if value is not None}
    for name in filters.keys() & {"since_ms", "until_ms"}:
        filters[name] = moment(filters[name])
    # An address is personal data, so it is not shown to other operators.
    for name in filters.keys() & {"email", "words"}:
        filters[name] = "..."
    return (
        " ".join(f"{name.removesuffix('_ms')}={value}" for name, value in filters.items()) or "all"
    )
