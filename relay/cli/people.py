"""`relay erase` and `relay export`: remove or print a person's data, by e-mail address."""

import re
import time
from collections.abc import Iterator
from typing import Any

import click

from relay.cli.client import Client, connected
from relay.cli.documents import print_indented, print_json, timed
from relay.cli.output import ago, moment, pairs, show
from relay.cli.parameters import json_option, parsed
from relay.cli.target import Target, relay_options

_PARTS = ("events", "unreadable", "mentions", "views")

_COUNTED = (
    ("events", "bodies and headers; their ids are kept"),
    ("pending", "pending deliveries, discarded"),
    ("dead", "dead letters, discarded"),
    ("unreadable", "requests without an event"),
    ("quarantine", "requests kept during a secret rotation"),
    ("excerpts", "responses of destinations about other events"),
    ("reasons", "failure reasons with the address"),
    ("searches", "replays selected by the address"),
    ("views", "views and leads of the audience report"),
    ("videos", "titles and ids of videos with the address"),
)


def _address(text: str) -> str:
    if not re.fullmatch(r"[^@]+@[^@\s]+", text.strip()):
        raise ValueError("expected an e-mail address such as ann@example.com")
    return text.strip()


email_argument = click.argument("email", callback=parsed(_address))


@click.command()
@email_argument
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and change nothing.")
@relay_options
@json_option
def erase(*, email: str, dry_run: bool, target: Target, as_json: bool) -> None:
    """Remove a person's data from the relay, and list the sinks that received it.

    Event ids are kept, so that a late retry does not bring the person back.
    """
    with connected(target) as client:
        report = client.post("/people/erase" + ("/count" if dry_run else ""), {"email": email})
    if as_json:
        print_json(report)
        return
    click.echo("Would be removed:" if dry_run else "Removed:")
    pairs(
        ((name, f"{report[name]:<5}  {description}") for name, description in _COUNTED),
        indent="  ",
    )
    _show_recipients("Already delivered, so remove it there as well:", report["told"])
    _show_recipients("Possibly delivered, an attempt was not confirmed:", report["unconfirmed"])
    if report["under_way"]:
        click.echo("\nIn flight now, so it may still be delivered:")
        rows = [
            (delivery["sink"], delivery["source"], delivery["id"])
            for delivery in report["under_way"]
        ]
        show(("SINK", "SOURCE", "ID"), rows, empty="")
    if report["kept_ids"]:
        click.echo(f"\n{report['kept_ids']} event ids contain the address and are kept.")
    if not dry_run:
        click.echo(f"\n{_WIPED if report['wiped'] else _NOT_WIPED}")


_WIPED = "The store's files are overwritten and its log is empty; backups still hold the data."
_NOT_WIPED = (
    "The store's files are still being overwritten, or a reader holds its log; the relay "
    "finishes this in the background. Backups still hold the data."
)


def _show_recipients(heading: str, recipients: list[dict[str, Any]]) -> None:
    if not recipients:
        return
    click.echo(f"\n{heading}")
    now_ms = time.time_ns() // 1_000_000
    show(
        ("SINK", "EVENT", "COUNT", "LAST", "AGE"),
        [
            (
                row["sink"],
                row["kind"],
                str(row["count"]),
                moment(row["last_ms"]),
                ago(row["last_ms"], now_ms=now_ms),
            )
            for row in recipients
        ],
        empty="",
    )


@click.command()
@email_argument
@relay_options
@json_option
def export(*, email: str, target: Target, as_json: bool) -> None:
    """Print all stored data of a person as one JSON object; with --json, in one line."""
    with connected(target) as client:
        parts = list(_parts(client, email))
    document = {name: [item for part in parts for item in part[name]] for name in _PARTS}
    if as_json:
        print_json(document)
    else:
        print_indented(timed(document))


def _parts(client: Client, email: str) -> Iterator[Any]:
    after = None
    while True:
        part = client.post("/people/export", {"email": email, "after": after})
        yield part
        after = part["next"]
        if after is None:
            return
