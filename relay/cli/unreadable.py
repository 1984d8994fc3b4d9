"""`relay unreadable`: verified requests without a usable event, kept as received."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import click

from relay.cli import selection
from relay.cli.client import AdminClient, JsonObject, relay_command
from relay.cli.output import Output, moment, pairs, safe, when
from relay.cli.parameters import confirm, name_option, parsed, yes_option
from relay.core.units import number

ID_DIGITS = 12
"""Digits of an id that are shown; any unambiguous prefix is accepted."""

_FOR_GOOD = "Nothing brings back what is in them."


def _digits(text: str) -> str:
    digits = text.lower()
    if not 4 <= len(digits) <= 64 or set(digits) - set("0123456789abcdef"):
        raise ValueError("expected 4 to 64 hex digits, a prefix of an id in the list")
    return digits


id_argument = click.argument("digits", metavar="ID", callback=parsed(_digits))
optional_id_argument = click.argument(
    "digits", metavar="[ID]", required=False, callback=parsed(_digits)
)
source_option = name_option("source", "Its source, if several received the same body.")
_FILTERS = (
    name_option("source", "Of this source."),
    click.option("--reason", metavar="TEXT", help="With this text in the reason."),
    selection.since_option,
    selection.until_option,
)


def _filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_FILTERS):
        command = option(command)
    return command


@click.group()
def unreadable() -> None:
    """List, show, retry or discard requests without an event.

    Their signatures are right, and they go to no sink.
    """


@unreadable.command("list")
@_filter_options
@selection.before_option
@selection.limit_option
@relay_command
def list_(client: AdminClient, **query: Any) -> Output:
    """List unreadable requests, newest first."""
    page = client.get("/unreadable", query)
    rows = map(request_row, page["unreadable"])
    return Output(page, selection.page_lines(page, rows, empty="No unreadable requests."))


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
def show_(client: AdminClient, *, digits: str, source: str | None) -> Output:
    """Show the headers and body of one request, with control characters escaped."""
    record = client.get(f"/unreadable/{digits}", {"source": source})
    return Output(record, _record(record))


def _record(record: JsonObject) -> Iterator[str]:
    request = record["request"]
    yield from pairs(
        [
            ("id", request["id"]),
            ("source", request["source"]),
            ("received", when(request["received_ms"], now_ms=record.now_ms)),
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
@optional_id_argument
@_filter_options
@selection.all_option
@relay_command
def retry(client: AdminClient, *, digits: str | None, everything: bool, **chosen: Any) -> Output:
    """Accept the events of requests that can be read by now, as of their receipt.

    The signature was verified then. An event that is known already is not delivered again.
    """
    if digits is not None:
        result = client.post(_path_of_one("retry", digits, everything=everything, **chosen))
    else:
        selection.require_one(chosen, everything=everything)
        result = client.post("/unreadable/retry", {**chosen, "all": everything})
    return Output(result, _retried(result))


def _retried(result: dict[str, int]) -> Iterator[str]:
    if not any(result.values()):
        yield "Nothing to retry: no unreadable request matches."
    for name, words in _RETRIED.items():
        if result[name]:
            yield f"{number(result[name])} {words}."


_RETRIED = {
    "accepted": "accepted",
    "duplicates": "known already, and removed",
    "conflicts": "kept: the event is known with another body",
    "unreadable": "kept: still no usable event",
    "lost": "kept: the body is gone or damaged",
}


@unreadable.command()
@optional_id_argument
@_filter_options
@selection.all_option
@selection.dry_run_option
@yes_option
@relay_command
def discard(
    client: AdminClient,
    *,
    digits: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    **chosen: Any,
) -> Output:
    """Delete requests; nothing brings them back."""
    if digits is not None:
        path = _path_of_one("discard", digits, everything=everything or dry_run, **chosen)
        confirm(f"Delete the unreadable request {digits}? {_FOR_GOOD}", yes=yes)
        request = client.post(path)
        name = safe(f"{request['id'][:ID_DIGITS]} of {request['source']}")
        return Output(request, [f"{name} is removed."])
    selection.require_one(chosen, everything=everything)
    if not dry_run:
        which = "all unreadable requests" if everything else "the unreadable requests that match"
        confirm(f"Delete {which}? {_FOR_GOOD}", yes=yes)
    order = {**chosen, "all": everything, "dry_run": dry_run}
    result = client.post("/unreadable/discard", order)
    if dry_run:
        return Output(
            result, selection.discardable(result["reasons"], of="source", what="unreadable request")
        )
    return Output(result, [f"{number(result['discarded'])} discarded."])


def _path_of_one(
    action: str, digits: str, *, everything: bool, source: str | None, **others: object
) -> str:
    """Return the path of a change to one request; raises UsageError for any other selection."""
    if everything or any(value is not None for value in others.values()):
        raise click.UsageError("ID selects one request; of the other options it takes --source")
    query = "" if source is None else f"?{urlencode({'source': source})}"
    return f"/unreadable/{digits}/{action}{query}"
