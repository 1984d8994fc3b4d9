"""`relay status`: the verdict on the running relay, and its figures; `relay probe`: its health."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx

from relay.cli.client import RelayTarget, anonymous, connected, relay_options, url_option
from relay.cli.output import (
    Output,
    ago,
    backlog_cells,
    flow,
    moment,
    pairs,
    printing,
    table,
    waits_for,
    when,
)
from relay.cli.parameters import config_option, json_option
from relay.core.errors import AdminApiError, NoVerdict
from relay.core.units import deviation, duration, size

TIMEOUT = httpx.Timeout(3.5, connect=1.5)
"""5 s in total, so that a hanging relay does not block the command; it waits 2 s for its store."""


REVISION_SHOWN = 12
"""Characters of a revision that tell it from any other."""
PROBE_TIMEOUT_S = 5.0


@click.command()
@relay_options
@json_option
@click.pass_context
def status(context: click.Context, *, target: RelayTarget, as_json: bool) -> None:
    """Show problems that need an operator, each with its start, cause and next command.

    Exits 0 without such a problem, 1 with one, 2 without a verdict within 5 s (the relay is not
    reachable, hangs, or refuses the token), and 78 if the config does not say where the relay is.
    """
    try:
        with connected(target, timeout=TIMEOUT) as client:
            report = client.get("/status")
        Output(report, _lines(report)).print(as_json=as_json)
        context.exit(0 if report["well"] else 1)
    except AdminApiError as error:
        raise NoVerdict.of(error) from None


def _lines(report: dict[str, Any]) -> Iterator[str]:
    now_ms = report["now_ms"]
    yield _verdict(report["problems"])
    for problem in report["problems"]:
        yield from flow(_problem(problem, now_ms=now_ms))
    yield ""
    rows = [_sink(sink, now_ms=now_ms) for sink in report["sinks"]]
    yield from table(rows, empty="The config has no sink.")
    yield ""
    if (cluster := report["cluster"]) is not None:
        rows = [_member(each, now_ms=now_ms) for each in cluster["members"]]
        yield from table(rows, empty="No relay has sent a heartbeat.")
        yield ""
    yield from pairs(_relay(report, now_ms=now_ms))
    for source in report["sources"]:
        yield from flow(_source(source, now_ms=now_ms))


def _verdict(problems: list[dict[str, Any]]) -> str:
    urgent = sum(problem["severity"] != "info" for problem in problems)
    if not urgent:
        return "well: no problem needs action"
    return f"not well: {urgent} {'problem needs' if urgent == 1 else 'problems need'} action"


def _problem(problem: dict[str, Any], *, now_ms: int) -> Iterator[str]:
    yield f"{problem['severity']}: {problem['what']}"
    if problem["since_ms"] is not None:
        yield f"since {when(problem['since_ms'], now_ms=now_ms)}"
    yield problem["why"]
    yield f"next: {problem['next']}"


_GONE: dict[str, Any] = {
    "state": "not configured",
    "since_ms": None,
    "waits_for": None,
    "stands_still_since_ms": None,
}
"""The condition of a sink that is only in the store."""


def _sink(sink: dict[str, Any], *, now_ms: int) -> dict[str, object]:
    condition = sink["condition"] or _GONE
    return {
        "SINK": sink["name"],
        "STATE": condition["state"],
        "SINCE": ago(condition["since_ms"], now_ms=now_ms),
        "PENDING": "?" if sink["pending"] is None else sink["pending"],
        **backlog_cells(condition, sink["pending"], now_ms=now_ms),
        "OLDEST": ago(sink["oldest_pending_ms"], now_ms=now_ms),
        "REPLAY": ago(sink["replaying_since_ms"], now_ms=now_ms),
        "DEAD": "?" if sink["dead"] is None else sink["dead"],
        "WAITS FOR": waits_for(condition, now_ms=now_ms),
    }


def _member(member: dict[str, Any], *, now_ms: int) -> dict[str, object]:
    return {
        "MEMBER": f"{member['name']} (this one)" if member["is_self"] else member["name"],
        "VERSION": member["version"],
        "REVISION": member["revision"][:REVISION_SHOWN] or None,
        "ADDRESS": member["address"],
        "SINCE": ago(member["since_ms"], now_ms=now_ms),
        "HEARTBEAT": ago(member["beat_ms"], now_ms=now_ms),
        "SINKS": ", ".join(member["sinks"]) or None,
        "CONFIG": member["config"],
    }


def _relay(report: dict[str, Any], *, now_ms: int) -> Iterator[tuple[str, str]]:
    state = "stopping" if report["draining"] else "running"
    started = when(report["started_ms"], now_ms=now_ms)
    yield "relay", f"{report['version']}, {state}, started {started}"
    disk = report["store"]["disk"]
    yield "store", ", ".join(_space(disk))
    yield "config", _config(report["last_reload"], now_ms=now_ms)
    yield "away", _away(report["downtime"])
    lost_ms = report["unacknowledged_loss_ms"]
    yield "lost", f"{duration(lost_ms)}, unacknowledged" if lost_ms else "nothing unacknowledged"


def _space(disk: dict[str, Any]) -> Iterator[str]:
    yield size(disk["store_bytes"])
    if disk["free_bytes"] is not None:
        yield f"{size(disk['free_bytes'])} free"
        yield f"min_free {size(disk['min_free_bytes'])}"


def _config(reading: dict[str, Any] | None, *, now_ms: int) -> str:
    if reading is None:
        return "read at the start"
    word = "taken" if reading["taken"] else "refused"
    return f"{word} {when(reading['at_ms'], now_ms=now_ms)}"


def _away(downtime: dict[str, Any] | None) -> str:
    if downtime is None:
        return "never: this is the store's first start"
    length = duration(downtime["to_ms"] - downtime["from_ms"])
    return f"{length} before this start, from {moment(downtime['from_ms'])}"


def _source(source: dict[str, Any], *, now_ms: int) -> Iterator[str]:
    traffic = source["traffic"]
    yield f"source {source['name']}"
    yield f"verified {ago(traffic['verified_ms'], now_ms=now_ms)}"
    if traffic["skew_s"] is not None:
        yield f"clock {deviation(traffic['skew_s'])}"
    for event in source["last_events"]:
        yield f"{event['kind']} {ago(event['at_ms'], now_ms=now_ms)}"


@click.command()
@config_option
@url_option
@printing
def probe(*, path: Path | None, url: httpx.URL | None) -> Output:
    """Check that the relay's /healthz responds; needs no token.

    Exits 0 if it does within 5 s, else 1. The state of store and sinks does not count, because an
    orchestrator restarts the relay on a failed check, which would repair neither.
    """
    target = RelayTarget(path=path, url=url, token=None)
    with anonymous(target, timeout_s=PROBE_TIMEOUT_S) as client:
        health = client.health()
    return Output(health, [health["status"]])
