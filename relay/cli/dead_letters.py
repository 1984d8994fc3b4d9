"""`relay dead-letters`: deliveries that the relay gave up."""

import time
from collections.abc import Sequence
from typing import Any

import click

from relay.cli.client import connected
from relay.cli.documents import print_json
from relay.cli.output import ago, moment, show
from relay.cli.parameters import json_option
from relay.cli.replay import follow, show_estimate
from relay.cli.selection import (
    all_option,
    dry_run_option,
    limit_option,
    require_one,
    selection_options,
    show_next,
)
from relay.cli.target import Target, relay_options
from relay.cli.unreadable import show_requests


@click.group("dead-letters")
def dead_letters() -> None:
    """List, replay or discard dead letters."""


@dead_letters.command("list")
@selection_options
@limit_option
@relay_options
@json_option
def list_(*, target: Target, as_json: bool, limit: int, **selection: Any) -> None:
    """List dead letters, newest first, and their number by reason."""
    with connected(target) as client:
        page = client.get("/dead-letters", {**selection, "limit": limit})
        all_pages = {name: value for name, value in selection.items() if name != "before"}
        reasons = client.get("/dead-letters/reasons", all_pages)["reasons"]
    if as_json:
        print_json({**page, "reasons": reasons})
        return
    now_ms = time.time_ns() // 1_000_000
    show(
        ("RECEIVED", "GIVEN UP", "SINK", "EVENT", "ID", "TRIES", "REASON"),
        [
            (
                moment(letter["received_ms"]),
                ago(letter["settled_ms"], now_ms=now_ms),
                letter["sink"],
                letter["kind"],
                letter["id"],
                str(letter["attempts"]),
                letter["reason"] or "-",
            )
            for letter in page["dead_letters"]
        ],
        empty="No dead letter matches.",
    )
    show_next(page["next"])
    if reasons:
        click.echo()
        _show_reasons(reasons, empty="")
    if page["unreadable"]:
        click.echo("\nVerified requests without an event; `relay unreadable show ID` shows one:")
        show_requests(page["unreadable"])


@dead_letters.command()
@selection_options
@all_option
@dry_run_option
@relay_options
@json_option
def replay(
    *, target: Target, as_json: bool, dry_run: bool, everything: bool, **selection: Any
) -> None:
    """Deliver dead letters again, to the sinks whose routes take them."""
    require_one(selection, everything=everything)
    if selection["outcome"] not in (None, "dead"):
        raise click.UsageError(
            f"--outcome {selection['outcome']} excludes dead letters: leave it out"
        )
    chosen = {**selection, "outcome": "dead"}
    with connected(target) as client:
        if dry_run:
            show_estimate(client, chosen, by=("sink", "reason"), as_json=as_json)
        else:
            follow(client, chosen, as_json=as_json)


@dead_letters.command()
@selection_options
@all_option
@dry_run_option
@relay_options
@json_option
def discard(
    *, target: Target, as_json: bool, dry_run: bool, everything: bool, **selection: Any
) -> None:
    """Discard dead letters; `relay replay` can still deliver them."""
    require_one(selection, everything=everything)
    order = {**selection, "all": everything, "dry_run": dry_run}
    with connected(target) as client:
        result = client.post("/dead-letters/discard", order)
    if as_json:
        print_json(result)
        return
    if not dry_run:
        click.echo(f"{result['discarded']} discarded.")
        return
    _show_reasons(result["reasons"], empty="Nothing to discard: no dead letter matches.")
    if result["reasons"]:
        count = sum(reason["count"] for reason in result["reasons"])
        click.echo(f"{count} in all; repeat without --dry-run to discard them.")


def _show_reasons(reasons: Sequence[dict[str, Any]], *, empty: str) -> None:
    show(
        ("COUNT", "SINK", "REASON"),
        [(str(reason["count"]), reason["sink"], reason["reason"] or "-") for reason in reasons],
        empty=empty,
    )
