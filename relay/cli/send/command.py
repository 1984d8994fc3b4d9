"""`relay send`: sends signed sample events, or a body from a file, as the video service does."""

import asyncio
import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from typing import BinaryIO

import click
import httpx
import uvloop

from relay.cli.completion import names_of
from relay.cli.destination import DEFAULT_SECRET, DEFAULT_URL, Destination, destination
from relay.cli.parameters import Number, config_option, json_option, parsed, per_second
from relay.cli.send.load import Letter, Load, Tally
from relay.cli.send.report import Report
from relay.core import sample_events
from relay.core.clock import Clock, SystemClock
from relay.core.config_values import Secret
from relay.core.delivery_rules import WAITS_S
from relay.core.event import KINDS
from relay.video_service.sender import Sender, parse_url

ALL = "all"
CONCURRENCY = 16


@dataclass(frozen=True, kw_only=True)
class Order:
    """The events to send, and how to send them."""

    destination: Destination
    letters: Iterator[Letter]
    count: int
    rate: float | None
    concurrency: int
    schedule: tuple[float, ...]
    time_scale: float


@click.command()
@click.argument("event", type=click.Choice([*KINDS, ALL]), metavar="EVENT", required=False)
@click.option(
    "--url",
    metavar="URL",
    callback=parsed(parse_url),
    help=f"Where to send; default: the config's source, else {DEFAULT_URL}.",
)
@click.option(
    "--secret",
    metavar="REF",
    callback=parsed(Secret.resolve),
    help=f"env:NAME, file:/path or the secret; default: the config's, else {DEFAULT_SECRET}.",
)
@config_option
@click.option(
    "--source",
    metavar="NAME",
    shell_complete=names_of("source"),
    help="The config's source to send to; default: the one with the URL's path, or the first.",
)
@click.option(
    "--count", type=click.IntRange(min=1), help="Send this many events, and print a summary."
)
@click.option(
    "--rate",
    metavar="R",
    callback=parsed(per_second),
    help="Events per second; default: as fast as responses come.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=CONCURRENCY,
    show_default=True,
    help="Maximum number of concurrent requests.",
)
@click.option("--retry", is_flag=True, help="Try 6 times, waiting 20, 40, 80, 160 and 320 s.")
@click.option(
    "--data",
    type=click.File("rb"),
    metavar="FILE",
    help="Send this body byte for byte instead of a sample; - is stdin.",
)
@click.option(
    "--time-scale",
    type=Number(0, 100),
    default=1.0,
    show_default=True,
    help="Multiply the waits of --retry, for trials: 0.01 makes 20 s 0.2 s.",
)
@json_option
@click.pass_context
def send(
    context: click.Context,
    *,
    event: str | None,
    url: httpx.URL | None,
    secret: Secret | None,
    path: Path | None,
    source: str | None,
    count: int | None,
    rate: float | None,
    concurrency: int,
    retry: bool,
    data: BinaryIO | None,
    time_scale: float,
    as_json: bool,
) -> None:
    """Send signed events as the video service does.

    EVENT is video.created, video.ready, video.failed, video.deleted, video.watched,
    lead.captured, webhook.test, or `all` for the seven in turn.

    Every event gets its own id; with --data the file is the event, so --count sends duplicates.

    Exits 0 if every event was acknowledged, else 1.
    """
    if event is None and data is None:
        raise click.UsageError("expected an EVENT, or --data FILE")
    clock = SystemClock()
    total = count or (len(KINDS) if event == ALL and data is None else 1)
    order = Order(
        destination=destination(url=url, secret=secret, path=path, source=source),
        letters=_copies(data.read(), total) if data else _samples(event or ALL, total),
        count=total,
        rate=rate,
        concurrency=concurrency if count else 1,
        schedule=WAITS_S if retry else (),
        time_scale=time_scale,
    )
    if data and total > 1:
        click.echo(f"{total} copies of one body: all but the first are duplicates", err=True)
    tally = Tally(total)
    report = Report(tally, each_attempt=count is None, as_json=as_json)
    try:
        uvloop.run(_send(order, tally, report, clock))
    finally:
        # Also after Ctrl-C: the figures so far are useful.
        report.end()
    context.exit(0 if tally.acknowledged == total else 1)


async def _send(order: Order, tally: Tally, report: Report, clock: Clock) -> None:
    load = Load(tally, clock=clock, rate=order.rate, concurrency=order.concurrency)
    sender = Sender(
        order.destination.url,
        order.destination.secret,
        header=order.destination.header,
        clock=clock,
        schedule=order.schedule,
        time_scale=order.time_scale,
        sleep=load.rest,
        connections=order.concurrency,
    )
    async with sender, asyncio.TaskGroup() as group:
        showing = group.create_task(report.show_progress())
        await load.run(sender, order.letters, report.watch)
        showing.cancel()


def _samples(event: str, count: int) -> Iterator[Letter]:
    random = SystemRandom()
    for kind in itertools.islice(itertools.cycle(KINDS if event == ALL else [event]), count):
        event_id = f"evt_{secrets.token_hex(8)}"
        created_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        body = sample_events.body(kind, event_id=event_id, created_at=created_at, random=random)
        yield Letter(kind, event_id, body)


def _copies(body: bytes, count: int) -> Iterator[Letter]:
    return itertools.repeat(Letter("", "", body), count)
