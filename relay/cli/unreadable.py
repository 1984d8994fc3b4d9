"""`relay unreadable`: verified requests without a usable event, kept as received."""

import time
from typing import Any
from urllib.parse import urlencode

import click

from relay.cli.client import connected
from relay.cli.documents import print_json
from relay.cli.output import ago, moment, pairs, safe, show
from relay.cli.parameters import json_option, parsed
from relay.cli.selection import before_option, limit_option, show_next
from relay.cli.target import Target, relay_options

ID_DIGITS = 12
"""Digits of an id that are shown; any unambiguous prefix is accepted."""


def _digits(text: str) -> str:
    digits = text.lower()
    if not 4 <= len(digits) <= 64 or set(digits) - set("0123456789abcdef"):
        raise ValueError("expected 4 to 64 hex digits, a prefix of an id in the list")
    return digits


id_argument = click.argument("digits", metavar="ID", callback=parsed(_digits))
source_option = click.option(
    "--source", metavar="NAME", help="Its source, if several received the same body."
)


@click.group()
def unreadable() -> None:
    """List, show or discard verified requests without an event, which go to no sink."""


@unreadable.command("list")
@before_option
@limit_option
@relay_options
@json_option
def list_(*, before: int | None, limit: int, target: Target, as_json: bool) -> None:
    """List unreadable requests, newest first."""
    with connected(target) as client:
        page = client.get("/unreadable", {"before": before, "limit": limit})
    if as_json:
        print_json(page)
        return
    show_requests(page["unreadable"])
    show_next(page["next"])


def show_requests(requests: list[dict[str, Any]]) -> None:
    """Print a table of unreadable requests."""
    show(
        ("RECEIVED", "SOURCE", "ID", "BYTES", "REASON"),
        [
            (
                moment(request["received_ms"]),
                request["source"],
                request["id"][:ID_DIGITS],
                "-" if request["bytes"] is None else str(request["bytes"]),
                request["reason"],
            )
            for request in requests
        ],
        empty="No unreadable requests.",
    )


@unreadable.command("show")
@id_argument
@source_option
@relay_options
@json_option
def show_(*, digits: str, source: str | None, target: Target, as_json: bool) -> None:
    """Show the headers and body of one request, with control characters escaped."""
    with connected(target) as client:
        record = client.get(f"/unreadable/{digits}", {"source": source})
    if as_json:
        print_json(record)
        return
    request = record["request"]
    received_ms, now_ms = request["received_ms"], time.time_ns() // 1_000_000
    pairs(
        [
            ("id", request["id"]),
            ("source", request["source"]),
            ("received", f"{moment(received_ms)}, {ago(received_ms, now_ms=now_ms)}"),
            ("reason", request["reason"]),
        ]
    )
    for part in ("headers", "body"):
        damaged = " (damaged: it differs from the received body)"
        click.echo(f"\n{part}{damaged if part == 'body' and record['is_damaged'] else ''}")
        for line in _lines(record[part]):
            click.echo(f"  {safe(line)}")


def _lines(text: str | None) -> list[str]:
    if text is None:
        return ["removed: its retention has expired, or it was erased"]
    # Not `splitlines`, which also splits at characters that do not end a line in a terminal.
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


@unreadable.command()
@id_argument
@source_option
@relay_options
@json_option
def discard(*, digits: str, source: str | None, target: Target, as_json: bool) -> None:
    """Delete one request."""
    query = "" if source is None else f"?{urlencode({'source': source})}"
    with connected(target) as client:
        request = client.post(f"/unreadable/{digits}/discard{query}")
    if as_json:
        print_json(request)
    else:
        click.echo(f"{request['id'][:ID_DIGITS]} of {safe(request['source'])} is removed.")
