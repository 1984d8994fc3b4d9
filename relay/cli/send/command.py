"""`relay send`: sends signed sample events, or a body from a file, as the video service does."""

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from typing import BinaryIO, NamedTuple

import click
import httpx
import uvloop

from relay.cli import parameters
from relay.cli.send.report import SendReport, SentEvent
from relay.core import sample_events
from relay.core.authentication import SourceSettings
from relay.core.clock import SystemClock
from relay.core.config_values import Secret
from relay.core.delivery_rules import WAITS_S
from relay.core.errors import ConfigError
from relay.core.event import KINDS
from relay.video_service.sender import Sender, parse_url

ALL = "all"
CONCURRENCY = 16
"""Requests at once with --count; without it one, so that the attempts are shown in order."""

DEFAULT_URL = "http://127.0.0.1:8080/webhooks"

DEFAULT_SECRET = "env:RELAY_SECRET"  # noqa: S105 - a reference, not a secret


@click.command()
@click.argument("event", type=click.Choice([*KINDS, ALL]), metavar="EVENT", required=False)
@click.option(
    "--url",
    metavar="URL",
    callback=parameters.parsed(parse_url),
    help=f"Where to send; default: the config's source, else {DEFAULT_URL}.",
)
@click.option(
    "--secret",
    metavar="REF",
    callback=parameters.parsed(Secret.resolve),
    help=f"env:NAME, file:/path or the secret; default: the config's, else {DEFAULT_SECRET}.",
)
@parameters.config_option
@parameters.name_option(
    "source", "The config's source to send to; default: the one with the URL's path, or the first."
)
@click.option(
    "--count",
    type=parameters.WholeNumber(min=1),
    help="Send this many events, and print a summary.",
)
@click.option(
    "--rate",
    metavar="R",
    callback=parameters.parsed(parameters.per_second),
    help="Events per second; default: as fast as responses come.",
)
@click.option("--retry", is_flag=True, help="Try 6 times, waiting 20, 40, 80, 160 and 320 s.")
@click.option(
    "--data",
    type=click.File("rb"),
    metavar="FILE",
    help="Send this body byte for byte instead of a sample; - is stdin.",
)
@parameters.json_option
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
    retry: bool,
    data: BinaryIO | None,
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
    target = destination(url=url, secret=secret, path=path, source=source)
    total = count or (len(KINDS) if event == ALL and data is None else 1)
    events = _copies(data.read(), total) if data else _samples(event or ALL, total)
    if data and total > 1:
        click.echo(f"{total} copies of one body: all but the first are duplicates", err=True)
    report = SendReport(total, each_attempt=count is None, as_json=as_json)
    slots = asyncio.Semaphore(CONCURRENCY if count else 1)
    try:
        with report.progress:
            uvloop.run(_send(target, _paced(events, rate), report, slots=slots, retry=retry))
    finally:
        # Also after Ctrl-C: the figures so far are useful.
        report.end()
    context.exit(0 if report.acknowledged == total else 1)


async def _send(
    target: "Destination",
    events: AsyncIterator[SentEvent],
    report: SendReport,
    *,
    slots: asyncio.Semaphore,
    retry: bool,
) -> None:
    async def wait(seconds: float) -> None:
        """Wait between two attempts, and let another event use the slot meanwhile."""
        slots.release()
        await asyncio.sleep(seconds)
        await slots.acquire()

    async def send_one(event: SentEvent) -> None:
        await sender.send(event.body, watch=report.watch(event))
        slots.release()

    sender = Sender(
        target.url,
        target.secret,
        header=target.header,
        clock=SystemClock(),
        schedule=WAITS_S if retry else (),
        sleep=wait,
    )
    async with sender, asyncio.TaskGroup() as group:
        async for event in events:
            await slots.acquire()
            group.create_task(send_one(event))


async def _paced(events: Iterator[SentEvent], rate: float | None) -> AsyncIterator[SentEvent]:
    """Yield as many events per second, or all at once without a rate."""
    started_s = time.monotonic()
    for index, event in enumerate(events):
        if rate is not None:
            await asyncio.sleep(started_s + index / rate - time.monotonic())
        yield event


def _samples(event: str, count: int) -> Iterator[SentEvent]:
    kinds = itertools.cycle(KINDS if event == ALL else [event])
    return map(sample, itertools.islice(kinds, count))


def sample(kind: str) -> SentEvent:
    """Create a sample event with a new id."""
    event_id = f"evt_{secrets.token_hex(8)}"
    created_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    body = sample_events.body(kind, event_id=event_id, created_at=created_at, random=SystemRandom())
    return SentEvent(kind, event_id, body)


def _copies(body: bytes, count: int) -> Iterator[SentEvent]:
    return itertools.repeat(SentEvent("", "", body), count)


class Destination(NamedTuple):
    """A source's URL, a valid secret of it, and its signature header."""

    url: httpx.URL
    secret: Secret
    header: str = "Service-Signature"


def destination(
    *, url: httpx.URL | None, secret: Secret | None, path: Path | None, source: str | None
) -> Destination:
    """Complete the options from the config; raises ConfigError if it is needed and faulty."""
    if url is not None and secret is not None and source is None:
        return Destination(url, secret)
    # Imported here, because `send --help` and a send with both options do not need it.
    from relay.config import default_path, load_listen_address, load_sources  # noqa: PLC0415

    file = path or default_path()
    if path is None and source is None and not file.exists():
        return Destination(url or parse_url(DEFAULT_URL), secret or _default_secret())
    try:
        chosen = _chosen(load_sources(file), name=source, url=url)
        address = load_listen_address(file)
    except ConfigError as error:
        error.add_note("to send without this config, give --url and --secret")
        raise
    return Destination(
        url or parse_url(address.url() + chosen.path),
        secret or _valid_secret(chosen),
        chosen.signature_header,
    )


def _chosen(
    sources: tuple[SourceSettings, ...], *, name: str | None, url: httpx.URL | None
) -> SourceSettings:
    if name is not None:
        return parameters.named("source", name, sources)
    of_url = (source for source in sources if url is not None and source.path == url.path)
    return next(of_url, sources[0])


def _valid_secret(source: SourceSettings) -> Secret:
    now_ms = time.time_ns() // 1_000_000
    valid = (key for key in source.secrets if key.until is None or key.until > now_ms)
    return next(valid, source.secrets[0]).secret


def _default_secret() -> Secret:
    try:
        return Secret.resolve(DEFAULT_SECRET)
    except ValueError as error:
        raise click.BadParameter(
            f"{error}, and there is no config; set it, or give --secret", param_hint="--secret"
        ) from None
