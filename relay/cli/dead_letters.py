"""`relay dead-letters`: deliveries that the relay gave up."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from relay.cli.client import AdminClient, JsonObject, relay_command
from relay.cli.output import Output, ago, moment, table
from relay.cli.parameters import confirm, yes_option
from relay.cli.replay import estimate, follow
from relay.cli.selection import (
    all_option,
    by_reason,
    discardable,
    dry_run_option,
    limit_option,
    page_lines,
    require_one,
    selection_options,
)
from relay.cli.unreadable import request_row
from relay.core.units import number


@click.group("dead-letters")
def dead_letters() -> None:
    """List, replay or discard dead letters."""


@dead_letters.command("list")
@selection_options
@limit_option
@relay_command
def list_(client: AdminClient, *, limit: int, **selection: Any) -> Output:
    """List dead letters, newest first, and their number by reason."""
    page = client.get("/dead-letters", {**selection, "limit": limit})
    all_pages = {**selection, "before": None}
    reasons = client.get("/dead-letters/reasons", all_pages)["reasons"]
    return Output({**page, "reasons": reasons}, _page(page, reasons))


def _page(page: dict[str, Any], reasons: Sequence[JsonObject]) -> Iterator[str]:
    yield from page_lines(page, map(_row, page["dead_letters"]), empty="No dead letter matches.")
    if reasons:
        yield ""
        yield from by_reason(reasons, of="sink")
    if page["unreadable"]:
        yield ""
        yield "Verified requests without an event; `relay unreadable show ID` shows one:"
        yield from table(map(request_row, page["unreadable"]), empty="")


def _row(letter: JsonObject) -> dict[str, object]:
    return {
        "RECEIVED": moment(letter["received_ms"]),
        "DIED": ago(letter["settled_ms"], now_ms=letter.now_ms),
        "SINK": letter["sink"],
        "KIND": f"{letter['kind']} (reconstructed)" if letter["reconstructed"] else letter["kind"],
        "ID": letter["id"],
        "ATTEMPTS": letter["attempts"],
        "REASON": letter["reason"] or "-",
    }


@dead_letters.command()
@selection_options
@all_option
@dry_run_option
@relay_command
def replay(client: AdminClient, *, dry_run: bool, everything: bool, **selection: Any) -> Output:
    """Deliver dead letters again, to the sinks whose routes take them."""
    require_one(selection, everything=everything)
    if selection["outcome"] not in (None, "dead"):
        raise click.UsageError(
            f"--outcome {selection['outcome']} excludes dead letters: leave it out"
        )
    chosen = {**selection, "outcome": "dead"}
    return estimate(client, chosen, by=("sink", "reason")) if dry_run else follow(client, chosen)


@dead_letters.command()
@selection_options
@all_option
@dry_run_option
@yes_option
@relay_command
def discard(
    client: AdminClient, *, dry_run: bool, yes: bool, everything: bool, **selection: Any
) -> Output:
    """Discard dead letters; `relay replay` can still deliver them."""
    require_one(selection, everything=everything)
    if everything and not dry_run:
        confirm("Discard all dead letters? No replay of dead letters finds them then.", yes=yes)
    order = {**selection, "all": everything, "dry_run": dry_run}
    result = client.post("/dead-letters/discard", order)
    if dry_run:
        return Output(result, discardable(result["reasons"], of="sink", what="dead letter"))
    return Output(result, [f"{number(result['discarded'])} discarded."])
