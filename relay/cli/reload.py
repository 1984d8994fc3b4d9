"""`relay reload`: reloads the running relay's config and prints the result."""

from collections.abc import Iterable, Iterator
from typing import Any

import click

from relay.cli.client import RelayTarget, connected, relay_options
from relay.cli.output import Output, printing, safe
from relay.core.errors import AdminApiError, ConfigError, Fault


@click.command()
@relay_options
@printing
def reload(*, target: RelayTarget) -> Output:
    """Make the running relay read its config again, and print the faults and warnings.

    Exits 0 if the new config is in use, 1 if it was refused or the relay is not reachable.
    """
    try:
        with connected(target) as client:
            changes = client.reload()
    except ConfigError as error:
        return _refusal(error.faults, f"the relay was not asked: {error.file} has faults")
    except AdminApiError as error:
        if not error.faults:
            raise
        return _refusal(error.faults, "refused; the relay keeps its current config")
    return Output({"ok": True, "faults": [], **changes}, _summary(changes))


def _refusal(faults: Iterable[Fault], outcome: str) -> Output:
    lines = [outcome, *(f"  {fault}" for fault in faults)]
    return Output({"ok": False, "faults": faults}, lines, ok=False)


def _summary(changes: dict[str, Any]) -> Iterator[str]:
    rows = {
        verb: [
            f"{kind} {name}"
            for kind, table in (("source", "sources"), ("sink", "sinks"))
            for name in changes[table][verb]
        ]
        for verb in ("added", "changed", "removed")
    }
    rows["changed"] += changes["settings"]
    rows["rerouted"] = [f"sink {name}" for name in changes["rerouted"]]
    yield "reloaded" if any(rows.values()) else "reloaded; nothing changed"
    for verb, names in rows.items():
        if names:
            yield f"  {verb:8}  {', '.join(names)}"
    # An older relay has neither.
    for mistake in changes.get("mistakes", ()):
        yield f"  fault     {_text(mistake)}; the next release refuses it"
    for warning in changes.get("warnings", ()):
        yield f"  warning   {_text(warning)}"


def _text(fault: dict[str, str]) -> str:
    return safe(str(Fault(fault["path"], fault["message"])))
