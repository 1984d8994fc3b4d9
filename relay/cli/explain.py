"""`relay route` and `relay render`: show routing and message of an event without sending it."""

import asyncio
import json
from pathlib import Path
from typing import Any, BinaryIO

import click

from relay import sinks
from relay.cli.completion import names_of
from relay.cli.documents import print_indented
from relay.cli.parameters import config_option, json_option
from relay.config import Config, default_path, load
from relay.core import authentication
from relay.core.clock import SystemClock
from relay.core.event import Event
from relay.core.routing import Verdict
from relay.core.sink import Sink, SinkSettings

_EFFECTS = {
    "takes": "",
    "declines": "",
    "fails": "; the delivery becomes a dead letter",
}

event_option = click.option(
    "--event",
    "file",
    type=click.File("rb"),
    required=True,
    help="The raw body of an event; - is stdin.",
)
source_option = click.option(
    "--source",
    metavar="NAME",
    shell_complete=names_of("source"),
    help="As if this source received it; default: the first one.",
)


@click.command()
@event_option
@config_option
@source_option
@json_option
def route(*, file: BinaryIO, path: Path | None, source: str | None, as_json: bool) -> None:
    """Show which sinks would take an event, with the reason of each decision."""
    config = load(path or default_path())
    event = _read_event(file, config, source)
    verdicts = [route.evaluate(event) for route in config.routes]
    click.echo(_routes_json(event, verdicts) if as_json else _routes_text(event, verdicts))


@click.command()
@click.option(
    "--sink",
    "name",
    required=True,
    metavar="NAME",
    shell_complete=names_of("sink"),
    help="The sink's name.",
)
@event_option
@config_option
@source_option
@json_option
def render(
    *, name: str, file: BinaryIO, path: Path | None, source: str | None, as_json: bool
) -> None:
    """Show the message that a sink would send, with secrets masked."""
    config = load(path or default_path())
    settings = _named("sink", name, config.sinks)
    event = _read_event(file, config, source)
    verdict = next(route.evaluate(event) for route in config.routes if route.sink == name)
    if verdict.outcome != "takes":
        click.echo(f"relay: {name} would not take this event: {verdict.why}", err=True)
    rendered = asyncio.run(_rendered(settings, event))
    if as_json:
        click.echo(json.dumps(rendered))
    else:
        print_indented(rendered)


def _read_event(file: BinaryIO, config: Config, source: str | None) -> Event:
    chosen = config.sources[0] if source is None else _named("source", source, config.sources)
    content = authentication.read(chosen.name, (), file.read(), now_ms=SystemClock().now_ms())
    if isinstance(content, Event):
        return content
    raise click.ClickException(
        f"{file.name}: {content.reason}; the relay keeps such a request as unreadable"
    )


def _named(table: str, name: str, settings: Any) -> Any:
    match = next((table for table in settings if table.name == name), None)
    if match is None:
        known = ", ".join(table.name for table in settings) or "none"
        text = f"the config has no {table} `{name}`; expected one of: {known}"
        raise click.BadParameter(text, param_hint=f"--{table}")
    return match


async def _rendered(settings: SinkSettings, event: Event) -> dict[str, Any]:
    sink: Sink = sinks.load(settings.type).build(settings, SystemClock())
    try:
        return sink.render(event)
    finally:
        await sink.close()


def _routes_text(event: Event, verdicts: list[Verdict]) -> str:
    head = f"{event.kind} {event.id}, as if received by source {event.source}"
    rows = [("SINK", "VERDICT", "WHY")]
    rows += [
        (verdict.sink, verdict.outcome, verdict.why + _EFFECTS[verdict.outcome])
        for verdict in verdicts
    ]
    if not verdicts:
        return f"{head}: only stored, because the config has no sink"
    width = max(len(sink) for sink, _, _ in rows)
    lines = [f"{sink:{width}}  {outcome:8}  {why}" for sink, outcome, why in rows]
    return "\n".join([head, *lines])


def _routes_json(event: Event, verdicts: list[Verdict]) -> str:
    routes = [
        {"sink": verdict.sink, "outcome": verdict.outcome, "why": verdict.why}
        for verdict in verdicts
    ]
    head = {"source": event.source, "id": event.id, "event": event.kind}
    return json.dumps(head | {"routes": routes})
