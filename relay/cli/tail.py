"""`relay events tail`: a relay's live activity, optionally from a moment in the past on.

It goes on after a restart of the relay, without a gap.
"""

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any

import click

from relay.cli.client import AdminClient, RelayTarget, connected, relay_options
from relay.cli.output import Output, flow, moment
from relay.cli.parameters import json_option, moment_option, name_option
from relay.core.errors import RelayUnreachable

_STDOUT = 1
_RETRY_S = 1.0
_LATE_MS = 60_000
"""An attempt is stored some time after it began, so that much of the past is read again."""

_SHOWN_MAX = 10_000
"""Activities remembered, so that they are not shown again."""

_FIRST = ("sink", "status", "duration_ms", "reason")
"""Fields shown first; an id comes last, so that it can be copied whole."""


@click.command()
@name_option("sink", "Only activity of this sink.")
@click.option("--event", "kind", metavar="GLOB", help='Events of this kind, such as "video.*".')
@moment_option("since", "Start with the stored events and attempts since then.")
@relay_options
@json_option
def tail(*, target: RelayTarget, as_json: bool, **query: Any) -> None:
    """Print events, attempts and other activity live, until Ctrl-C."""
    _end_with_the_reader()
    with connected(target) as client:
        for activity in _followed(client, query):
            Output(activity, flow(_parts(activity))).print(as_json=as_json)
            sys.stdout.flush()


def _end_with_the_reader() -> None:
    """End the process as soon as its output has no reader, even if there is nothing to print."""
    reader = select.poll()
    reader.register(_STDOUT, 0)  # an error is always reported

    def wait() -> None:
        reader.poll()
        os._exit(1)  # as click does where a write fails for the same reason

    threading.Thread(target=wait, name="reader", daemon=True).start()


def _followed(client: AdminClient, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield activity without an end; raises AdminApiError if no relay can be reached at first."""
    first_ms = last_ms = query["since_ms"] or time.time_ns() // 1_000_000
    shown = deque[Hashable](maxlen=_SHOWN_MAX)
    stream = client.stream("/stream", query)
    while True:
        repeated = frozenset(shown)
        for activity in stream:
            identity = _identity(activity)
            if identity not in repeated:
                shown.append(identity)
                last_ms = max(last_ms, activity["at_ms"])
                yield activity
        click.echo("The relay has stopped, or the connection to it; waiting for it.", err=True)
        since_ms = max(first_ms, last_ms - _LATE_MS)
        stream = _reconnected(client, {**query, "since_ms": since_ms})


def _identity(activity: dict[str, Any]) -> Hashable:
    return tuple(activity.get(name) for name in ("what", "at_ms", "source", "id", "sink"))


def _reconnected(client: AdminClient, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while True:
        try:
            yield from client.stream("/stream", query)
        except RelayUnreachable:
            time.sleep(_RETRY_S)
        else:
            return


def _parts(activity: dict[str, Any]) -> Iterator[str]:
    yield moment(activity["at_ms"])
    yield f"{activity['what']:10}"
    values = {name: activity[name] for name in _FIRST if name in activity} | activity
    for name, value in values.items():
        if name not in ("what", "at", "at_ms", "id") and value not in (None, "", []):
            yield _field(name, value)
    if activity.get("id"):
        yield f"id={activity['id']}"


def _field(name: str, value: Any) -> str:
    if isinstance(value, list):
        return f"{name}={','.join(map(str, value))}"
    if name == "duration_ms":
        return f"{value} ms"
    return f'{name}="{value}"' if " " in str(value) else f"{name}={value}"
