"""`relay status`: the running relay as a whole."""

from typing import Any

import click

from relay.cli.client import connected
from relay.cli.columns import ago, moment, pairs
from relay.cli.documents import print_json
from relay.cli.parameters import json_option
from relay.cli.target import Target, relay_options
from relay.errors import ApiError, NoVerdict

WAIT_S = 10.0
"""A relay that hangs must not hang whoever asks how it is."""


@click.command()
@relay_options
@json_option
def status(*, target: Target, as_json: bool) -> None:
    """Say which relay runs, since when, and what it may have missed while it was away.

    Exits 2 if there was no answer.
    """
    try:
        with connected(target, timeout_s=WAIT_S) as client:
            found = client.get("/status")
    except ApiError as error:
        raise NoVerdict.of(error) from None
    if as_json:
        print_json(found)
        return
    now_ms, started_ms = found["now_ms"], found["started_ms"]
    pairs(
        [
            ("version", found["version"]),
            ("started", f"{moment(started_ms)}, {ago(started_ms, now_ms=now_ms)}"),
            ("state", "stopping" if found["draining"] else "running"),
            ("away before", _away(found["downtime"])),
            *_lost(found),
        ]
    )


def _away(downtime: dict[str, Any] | None) -> str:
    if downtime is None:
        return "never: this is the store's first start"
    return f"{moment(downtime['from_ms'])} to {moment(downtime['to_ms'])}"


def _lost(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Every loss that no operator has acknowledged, whichever start it was before."""
    if not found["unacknowledged_loss_ms"]:
        return [("lost", "nothing unacknowledged")]
    return [("lost", _loss(each)) for each in found["unacknowledged"]]


def _loss(absence: dict[str, Any]) -> str:
    lacks = absence["lacks"]
    return (
        f"events first sent {moment(lacks['from_ms'])} to {moment(lacks['to_ms'])}; fetch them "
        f"from the sender, then run: relay absences acknowledge {absence['id']}"
    )
