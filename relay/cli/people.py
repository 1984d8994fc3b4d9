"""`relay erase` and `relay export`: remove or print a person's data, by e-mail address."""

import math
import re
import time
from collections.abc import Iterator
from typing import Any

import click

from relay.cli.client import AdminClient, JsonObject, relay_command
from relay.cli.output import Output, ago, indented, moment, pairs, safe, table, timed
from relay.cli.parameters import confirm, parsed, yes_option
from relay.cli.selection import dry_run_option
from relay.core.errors import AdminApiError
from relay.core.units import number
from relay.store.erasures import COUNTS

POLL_INTERVAL_S = 1.0

_PARTS = ("events", "unreadable", "mentions", "views", "watched")


def _address(text: str) -> str:
    if not re.fullmatch(r"[^@]+@[^@\s]+", text.strip()):
        raise ValueError("expected an e-mail address such as ann@example.com")
    return text.strip()


email_argument = click.argument("email", callback=parsed(_address))


@click.command()
@email_argument
@dry_run_option
@yes_option
@relay_command
def erase(client: AdminClient, *, email: str, dry_run: bool, yes: bool) -> Output:
    """Remove a person's data from the relay, and list the sinks that received it.

    The relay goes on if this command ends, and after a restart; the command shows its progress when
    it is repeated. Event ids are kept, so that a late retry does not bring the person back.
    """
    if dry_run:
        report = client.post("/people/erase/count", {"email": email})
    else:
        confirm(f"Remove all stored data of {safe(email)}? This cannot be undone.", yes=yes)
        report = _followed(client, client.post("/people/erase", {"email": email}))
    return Output(report, _report(report, dry_run=dry_run))


def _followed(client: AdminClient, erasure: dict[str, Any]) -> dict[str, Any]:
    """Show the progress of an erasure on stderr until it ends."""
    # An older relay ends it before it responds, and says nothing of that.
    try:
        while "ended_ms" in erasure and erasure["ended_ms"] is None:
            click.echo(_progress(erasure), err=True)
            time.sleep(POLL_INTERVAL_S)
            erasure = client.get(f"/people/erasures/{erasure['id']}")
    except (KeyboardInterrupt, click.Abort):
        raise AdminApiError(f"{_progress(erasure)} {_GOES_ON}") from None
    except AdminApiError as error:
        raise AdminApiError(f"{error}. {_progress(erasure)} {_GOES_ON}") from None
    return erasure


def _progress(erasure: dict[str, Any]) -> str:
    share, events = math.floor(100 * erasure["share"]), number(erasure["events"])
    return (
        f"Erasure {erasure['id']}: {share} % of the store is searched, {events} events are removed."
    )


_GOES_ON = "The erasure goes on in the relay; repeat the command to see how far it is."


def _report(report: dict[str, Any], *, dry_run: bool) -> Iterator[str]:
    yield "Would be removed:" if dry_run else "Removed:"
    counts = (
        (name, f"{number(report[name]):<5}  {description}") for name, description in COUNTS.items()
    )
    yield from pairs(counts, indent="  ")
    for heading, recipients in (
        ("Already delivered, so remove it there as well:", report["told"]),
        ("Possibly delivered, an attempt was not confirmed:", report["unconfirmed"]),
    ):
        if recipients:
            yield f"\n{heading}"
            yield from table(map(_recipient_row, recipients), empty="")
    if report["under_way"]:
        yield "\nIn flight now, so it may still be delivered:"
        yield from table(map(_delivery_row, report["under_way"]), empty="")
    if report["kept_ids"]:
        yield f"\n{number(report['kept_ids'])} event ids contain the address and are kept."
    if not dry_run:
        yield f"\n{report['remains']}"


def _recipient_row(recipient: JsonObject) -> dict[str, object]:
    return {
        "SINK": recipient["sink"],
        "KIND": recipient["kind"],
        "COUNT": recipient["count"],
        "LAST": moment(recipient["last_ms"]),
        "AGE": ago(recipient["last_ms"], now_ms=recipient.now_ms),
    }


def _delivery_row(delivery: dict[str, Any]) -> dict[str, object]:
    return {"SINK": delivery["sink"], "SOURCE": delivery["source"], "ID": delivery["id"]}


@click.command()
@email_argument
@relay_command
def export(client: AdminClient, *, email: str) -> Output:
    """Print all stored data of a person as one JSON object; with --json, in one line."""
    parts = list(_parts(client, email))
    document = {name: [item for part in parts for item in part[name]] for name in _PARTS}
    return Output(document, indented(timed(document)))


def _parts(client: AdminClient, email: str) -> Iterator[Any]:
    after = None
    while True:
        part = client.post("/people/export", {"email": email, "after": after})
        yield part
        after = part["next"]
        if after is None:
            return
