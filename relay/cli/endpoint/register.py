"""`relay endpoint register`: creates the webhook endpoint, and keeps its secret."""

import ipaddress
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import click
import httpx
from msgspec.structs import replace

from relay.cli.client import RelayTarget, connected
from relay.cli.output import Output, safe
from relay.cli.parameters import parsed
from relay.cli.private_file import SecretFile
from relay.cli.sender_api import SenderApi, sender_command
from relay.cli.subscription import listed, parse_events
from relay.core.errors import RelayError
from relay.video_service.api.client import Api
from relay.video_service.api.errors import ServiceApiError
from relay.video_service.api.records import Registration, Webhook
from relay.video_service.sender import parse_url

NOTE_TIMEOUT_S = 5.0


@click.command()
@click.option(
    "--url",
    metavar="URL",
    required=True,
    callback=parsed(parse_url),
    help="Where the video service shall send the events: the source's public address.",
)
@click.option(
    "--events",
    "kinds",
    metavar="LIST",
    default="all",
    show_default=True,
    callback=parsed(parse_events),
    help="Kinds with commas between them, or `all`.",
)
@click.option(
    "--secret-file",
    "secret_path",
    metavar="PATH",
    required=True,
    type=click.Path(path_type=Path),
    help="A new file, for the signing secret.",
)
@sender_command
def register(
    sender: SenderApi, *, url: httpx.URL, kinds: tuple[str, ...], secret_path: Path
) -> Output:
    """Create a webhook endpoint, and write its signing secret to a file.

    The service shows the secret once, so it is written before anything else can fail. Needs
    [source.api] only: its `endpoint` and the secret's file may still be missing.
    """
    with SecretFile.new(secret_path) as file:
        registration, same_url = _register(sender, file, url=str(url), events=kinds)
    others = [each.id for each in same_url if each != registration.webhook]
    if registration.webhook is None and len(same_url) == 1:
        registration, others = replace(registration, webhook=same_url[0]), []
    webhook = registration.webhook
    # Mostly there is no relay yet, and an earlier removal ends with the first event as well.
    note(sender, "registered", None if webhook is None else webhook.id)
    warnings = [_UNENCRYPTED] if url.scheme == "http" and _is_public(url.host) else []
    document = {
        "source": sender.source,
        "webhook": webhook,
        "secret_file": str(file.path),
        "same_url": others,
        "warnings": warnings,
    }
    lines = [
        *_lines(sender, webhook, file.path, others),
        *(f"warning: {each}" for each in warnings),
    ]
    return Output(document, lines)


def _is_public(host: str) -> bool:
    """Whether events for this host cross networks that strangers can read."""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith(_PRIVATE)


_PRIVATE = (".localhost", ".local", ".internal")
"""Ends of names that no public server has."""

_UNENCRYPTED = (
    "the URL is not https: events with personal data can be read on their way; put TLS in front "
    "and register the https URL"
)


def _register(
    sender: SenderApi, file: SecretFile, *, url: str, events: tuple[str, ...]
) -> tuple[Registration, tuple[Webhook, ...]]:
    async def create(api: Api) -> tuple[Registration, tuple[Webhook, ...]]:
        registration = await api.register(url, events)
        file.write(registration.secret)
        return registration, await _same_url(api, url)

    try:
        return sender.ask(create)
    except ServiceApiError as error:
        if error.uncertain:
            error.add_note(_UNCERTAIN)
        raise
    except OSError as error:
        error.add_note(_UNWRITTEN)
        raise


_UNCERTAIN = (
    "the endpoint may have been created nevertheless: look in the service's settings, and remove "
    "it there before you try again"
)
_UNWRITTEN = (
    "the endpoint was created, but its secret could not be written: remove the endpoint in the "
    "service's settings before you try again"
)


async def _same_url(api: Api, url: str) -> tuple[Webhook, ...]:
    try:
        return tuple(each for each in await api.webhooks() if each.url == url)
    except ServiceApiError:
        return ()  # it is only for hints, and the list's path is an assumption


def _lines(
    sender: SenderApi, webhook: Webhook | None, secret_file: Path, others: Iterable[str]
) -> Iterator[str]:
    if webhook is None:
        yield f"{sender.source}: registered an endpoint, whose id the answer does not say"
    else:
        events = f"receives {listed(webhook.events)}"
        yield safe(f"{sender.source}: registered {webhook.id}, {events}")
    yield f"Its signing secret is in {safe(str(secret_file))}, and is shown nowhere else."
    yield f"Put into source {sender.source} of {safe(str(sender.file))}:"
    yield f"  secrets = [{_quoted(f'file:{secret_file}')}]"
    yield "and into its [source.api]:"
    yield f"  endpoint = {'...' if webhook is None else _quoted(webhook.id)}"
    yield "Then run: relay check-config --connect"
    for other in others:
        yield safe(f"{other} has the same URL: each event comes from both, unless you remove one")


def _quoted(text: str) -> str:
    """Quote a text for TOML, whose basic strings JSON's are a part of."""
    return json.dumps(text)


def note(
    sender: SenderApi, change: Literal["registered", "removed"], endpoint: str | None
) -> str | None:
    """Notify the running relay of a changed endpoint, for its status; return why that failed.

    The video service reports no such change, and a relay that is down never fails the command.
    """
    target = RelayTarget(path=sender.file, url=None, token=None)
    try:
        with connected(target, timeout=NOTE_TIMEOUT_S) as client:
            order = {"change": change, "endpoint": endpoint}
            client.post(f"/sources/{quote(sender.source, safe='')}/endpoint", order)
    except RelayError as error:
        return safe(str(error))
    return None
