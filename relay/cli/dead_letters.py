"""`relay dead-letters`: the events that a sink will not get by itself any more."""

import json
import time
from typing import Any

import click

from relay.cli.client import connected
from relay.cli.columns import ago, moment, show
from relay.cli.documents import print_json
from relay.cli.events import limit_option
from relay.cli.parameters import json_option
from relay.cli.replay import follow
from relay.cli.selection import dead_letter_options
from relay.cli.target import Target, relay_options
from relay.cli.unreadable import show_requests


@click.group("dead-letters")
def dead_letters() -> None:
    """Look at what was given up, deliver it again, or give it up for good."""


@dead_letters.command("list")
@dead_letter_options
@limit_option
@relay_options
@json_option
def list_(*, target: Target, as_json: bool, limit: int, **selection: Any) -> None:
    """List dead letters, the newest first, and how many there are for each reason."""
    with connected(target) as client:
        found = client.get("/dead-letters", {**selection, "limit": limit})
        reasons = client.get("/dead-letters/reasons", selection)["reasons"]
    if as_json:
        print_json({**found, "reasons": reasons})
        return
    now_ms = time.time_ns() // 1_000_000
    show(
        ("RECEIVED", "GIVEN UP", "SINK", "EVENT", "ID", "TRIES", "REASON"),
        [
            (
                moment(each["received_ms"]),
                ago(each["settled_ms"], now_ms=now_ms),
                each["sink"],
                each["kind"],
                each["id"],
                str(each["attempts"]),
                each["reason"] or "-",
            )
            for each in found["dead_letters"]
        ],
        empty="No dead letter fits.",
    )
    if reasons:
        click.echo()
        show(
            ("COUNT", "SINK", "REASON"),
            [(str(each["count"]), each["sink"], each["reason"] or "-") for each in reasons],
            empty="",
        )
    if found["unreadable"]:
        click.echo("\nVerified requests that hold no event; relay unreadable show ID shows one:")
        show_requests(found["unreadable"])


@dead_letters.command()
@dead_letter_options
@click.option("--dry-run", is_flag=True, help="Say what would be delivered, and change nothing.")
@relay_options
@json_option
def replay(*, target: Target, as_json: bool, dry_run: bool, **selection: Any) -> None:
    """Deliver dead letters again, all or those that the options choose."""
    with connected(target) as client:
        follow(client, {**selection, "outcome": "dead"}, dry_run=dry_run, as_json=as_json)


@dead_letters.command()
@dead_letter_options
@click.option("--all", "everything", is_flag=True, help="Every dead letter there is.")
@relay_options
@json_option
def discard(*, target: Target, as_json: bool, everything: bool, **selection: Any) -> None:
    """Give dead letters up for good; `relay replay` can still deliver them."""
    if not everything and not any(value is not None for value in selection.values()):
        raise click.UsageError("say which: --id, --sink, --reason ..., or --all")
    with connected(target) as client:
        answer = client.post("/dead-letters/discard", selection)
    count = answer["discarded"]
    click.echo(json.dumps(answer) if as_json else f"{count} discarded.")
