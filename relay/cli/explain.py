"""`relay route` and `relay render`: show routing and message of an event without sending it."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click

from relay import sinks
from relay.cli.output import Output, indented, printing, safe, table
from relay.cli.parameters import config_option, name_option, named
from relay.config import Config, default_path, load
from relay.core import authentication
from relay.core.clock import SystemClock
from relay.core.event import Event
from relay.core.routing import Verdict
from relay.core.sink import Sink, SinkSettings
from relay.outbound.watched import NOT_SHOWN

event_option = click.option(
    "--event",
    "file",
    type=click.File("rb"),
    required=True,
    help="The raw body of an event; - is stdin.",
)
source_option = name_option("source", "As if this source received it; default: the first one.")


@click.command()
@event_option
@config_option
@source_option
@printing
def route(*, file: BinaryIO, path: Path | None, source: str | None) -> Output:
    """Show which sinks would take an event, with the reason of each decision."""
    config = load(path or default_path())
    event = _read_event(file, config, source)
    verdicts = [route.evaluate(event) for route in config.routes]
    routes = [
        {"sink": verdict.sink, "outcome": verdict.outcome, "why": verdict.why}
        for verdict in verdicts
    ]
    document = {"source": event.source, "id": event.id, "event": event.kind, "routes": routes}
    return Output(document, _verdicts(event, verdicts))


@click.command()
@name_option("sink", "The sink's name.", required=True)
@event_option
@config_option
@source_option
@printing
def render(*, sink: str, file: BinaryIO, path: Path | None, source: str | None) -> Output:
    """Show the message that a sink would send, with secrets masked."""
    config = load(path or default_path())
    settings = named("sink", sink, config.sinks)
    event = _read_event(file, config, source)
    verdict = next(route.evaluate(event) for route in config.routes if route.sink == sink)
    if verdict.outcome != "takes":
        click.echo(f"relay: {sink} would not take this event: {verdict.why}", err=True)
    if settings.enriches(event):
        click.echo(f"relay: {NOT_SHOWN}", err=True)
    rendered = asyncio.run(_rendered(settings, event))
    return Output(rendered, indented(rendered))


def _read_event(file: BinaryIO, config: Config, source: str | None) -> Event:
    chosen = config.sources[0] if source is None else named("source", source, config.sources)
    content = authentication.read(chosen.name, b"", file.read(), now_ms=SystemClock().now_ms())
    if isinstance(content, Event):
        return content
    raise click.ClickException(
        f"{file.name}: {content.reason}; the relay keeps such a request as unreadable"
    )


async def _rendered(settings: SinkSettings, event: Event) -> dict[str, Any]:
    sink: Sink = sinks.load(settings.type).build(settings, SystemClock())
    try:
        return sink.render(event)
    finally:
        await sink.close()


def _verdicts(event: Event, verdicts: Sequence[Verdict]) -> Iterator[str]:
    head = safe(f"{event.kind} {event.id}, as if received by source {event.source}")
    if not verdicts:
        yield f"{head}: only stored, because the config has no sink"
        return
    yield head
    yield from table(map(_row, verdicts), empty="")


def _row(verdict: Verdict) -> dict[str, object]:
    effect = "; the delivery becomes a dead letter" if verdict.outcome == "fails" else ""
    return {"SINK": verdict.sink, "VERDICT": verdict.outcome, "WHY": verdict.why + effect}
