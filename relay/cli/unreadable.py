"""`relay unreadable`: verified requests without a usable event, kept as received."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import click

from relay.cli.client import Client, relay_command
from relay.cli.output import moment, pairs, safe, when
from relay.cli.parameters import name_option, parsed
from relay.cli.printing import Output
from relay.cli.selection import before_option, limit_option, page_lines

ID_DIGITS = 12
"""Digits of an id that are shown; any unambiguous prefix is accepted."""


def _digits(text: str) -> str:
    digits = text.lower()
    if not 4 <= len(digits) <= 64 or set(digits) - set("0123456789abcdef"):
        raise ValueError("expected 4 to 64 hex digits, a prefix of an id in the list")
    return digits


id_argument = click.argument("digits", metavar="ID", callback=parsed(_digits))
source_option = name_option("source", "Its source, if several received the same body.")


@click.group()
def unreadable() -> None:
    """List, show or discard verified requests without an event, which go to no sink."""


@unreadable.command("list")
@before_option
@limit_option
@relay_command
def list_(client: Client, **query: Any) -> Output:
    """List unreadable requests, newest first."""
    page = client.get("/unreadable", query)
    rows = map(request_row, page["unreadable"])
    return Output(page, page_lines(page, rows, empty="No unreadable requests."))


def request_row(request: dict[str, Any]) -> dict[str, object]:
    """Return the row of an unreadable request in a table."""
    return {
        "RECEIVED": moment(request["received_ms"]),
        "SOURCE": request["source"],
        "ID": request["id"][:ID_DIGITS],
        "BYTES": request["bytes"],
        "REASON": request["reason"],
    }


@unreadable.command("show")
@id_argument
@source_option
@relay_command
def show_(client: Client, *, digits: str, source: str | None) -> Output:
    """Show the headers and body of one request, with control characters escaped."""
    record = client.get(f"/unreadable/{digits}", {"source": source})
    return Output(record, _record(record))


def _record(record: dict[str, Any]) -> Iterator[str]:
    request = record["request"]
    yield from pairs(
        [
            ("id", request["id"]),
            ("source", request["source"]),
            ("received", when(request["received_ms"])),
            ("reason", request["reason"]),
        ]
    )
    damaged = " (damaged: it differs from the received body)" if record["is_damaged"] else ""
    for heading, text in (("headers", record["headers"]), (f"body{damaged}", record["body"])):
        yield f"\n{heading}"
        for line in _lines(text):
            yield f"  {safe(line)}"


def _lines(text: str | None) -> list[str]:
    if text is None:
        return ["removed: its retention has expired, or it was erased"]
    # Not `splitlines`, which also splits at characters that do not end a line in a terminal.
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


@unreadable.command()
@id_argument
@source_option
@relay_command
def discard(client: Client, *, digits: str, source: str | None) -> Output:
    """Delete one request."""
    query = "" if source is None else f"?{urlencode({'source': source})}"
    request = client.post(f"/unreadable/{digits}/discard{query}")
    name = safe(f"{request['id'][:ID_DIGITS]} of {request['source']}")
    return Output(request, [f"{name} is removed."])
