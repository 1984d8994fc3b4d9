"""`relay reconcile` and `relay reconciliations`: what an outage cost, given back."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from relay.cli.client import AdminClient, JsonObject, relay_command
from relay.cli.output import Output, ago, moment, table
from relay.cli.parameters import WholeNumber, moment_option, name_option, parsed
from relay.cli.selection import before_option, dry_run_option, limit_option, page_lines
from relay.cli.subscription import parse_events
from relay.core.errors import AdminApiError
from relay.core.units import number

POLL_INTERVAL_S = 0.3

number_argument = click.argument("number", metavar="NUMBER", type=WholeNumber(min=1))


@click.command()
@name_option("source", "Only this source; default all that have [source.api].")
@moment_option("since", "Start of the period; default: that of the oldest absence not covered.")
@moment_option("until", "The end of the period; default now.")
@click.option(
    "--events",
    metavar="LIST",
    callback=parsed(parse_events),
    help="Only these kinds, with commas between them; default all that the endpoint receives.",
)
@dry_run_option
@relay_command
def reconcile(client: AdminClient, **order: Any) -> Output:
    """Ask the sender's API what an outage cost, and deliver it as reconstructed events.

    They go to sinks with `reconstructed = true`. The relay continues if this command ends;
    `relay reconciliations cancel` ends it. What the sender may still be sending is left out, and
    so are kinds of events that the endpoint does not receive.
    """
    begun = client.post("/reconciliations", order)["reconciliations"]
    finished = [_watch(client, run["id"]) for run in begun]
    lines = [line for run in finished for line in _lines(run)]
    failed = [run for run in finished if run["state"] != "done"]
    return Output({"reconciliations": finished}, lines, ok=not failed)


@click.group()
def reconciliations() -> None:
    """List reconciliations, or watch or cancel one."""


@reconciliations.command("list")
@before_option
@limit_option
@relay_command
def list_(client: AdminClient, **query: Any) -> Output:
    """List reconciliations, newest first."""
    page = client.get("/reconciliations", query)
    rows = map(_row, page["reconciliations"])
    return Output(page, page_lines(page, rows, empty="There are no reconciliations."))


def _row(run: JsonObject) -> dict[str, object]:
    return {
        "NUMBER": str(run["id"]),
        "SOURCE": run["source"],
        "BEGUN": moment(run["begun_ms"]),
        "AGE": ago(run["begun_ms"], now_ms=run.now_ms),
        "STATE": f"{run['state']} (dry run)" if run["dry_run"] else run["state"],
        "SINCE": moment(run["since_ms"]),
        "UNTIL": moment(run["until_ms"]),
        "EVENTS": sum((run["report"] or {}).get("events", {}).values()),
    }


@reconciliations.command()
@number_argument
@relay_command
def watch(client: AdminClient, *, number: int) -> Output:
    """Show the progress of a reconciliation until it ends, then its report.

    Exits 0 if it is done, and 1 if it failed or was cancelled.
    """
    run = _watch(client, number)
    return Output(run, _lines(run), ok=run["state"] == "done")


@reconciliations.command()
@number_argument
@relay_command
def cancel(client: AdminClient, *, number: int) -> Output:
    """End a reconciliation; what it has made stays."""
    client.post(f"/reconciliations/{number}/cancel")
    run = _watch(client, number)
    return Output(run, [f"Reconciliation {number} is {run['state']}."])


def _watch(client: AdminClient, number: int) -> dict[str, Any]:
    shown = ""
    try:
        while (run := client.get(f"/reconciliations/{number}"))["state"] == "running":
            text = _doing(run["progress"])
            if text != shown:
                click.echo(f"Source {run['source']}: {text}.", err=True)
                shown = text
            time.sleep(POLL_INTERVAL_S)
    except (KeyboardInterrupt, click.Abort):
        raise AdminApiError(
            "the reconciliation continues in the relay; "
            f"`relay reconciliations cancel {number}` ends it"
        ) from None
    result: dict[str, Any] = run
    return result


def _doing(progress: dict[str, Any] | None) -> str:
    if progress is None:
        return "ending"
    if progress["doing"] == "waiting":
        return "waiting"
    of = f" of {number(progress['total'])}" if progress["total"] else ""
    return f"{progress['doing']}: {number(progress['done'])}{of}"


def _lines(run: dict[str, Any]) -> Iterator[str]:
    period = f"{moment(run['since_ms'])} to {moment(run['until_ms'])}"
    yield f"Source {run['source']}, {period}: {run['state']}."
    words: Sequence[str] = run["words"]
    for line in words:
        yield f"  {line}"
    if run["named"]:
        yield from table(map(_fact, run["named"]), empty="")


def _fact(fact: dict[str, Any]) -> dict[str, object]:
    return {
        "OUTCOME": fact["outcome"],
        "KIND": fact["kind"],
        "PERSON": fact.get("person"),
        "VIDEO": fact.get("title") or fact.get("video"),
        "DETAIL": fact.get("lead") or fact.get("milestone"),
        "WHY": fact.get("why"),
        "ID": fact.get("event"),
    }
