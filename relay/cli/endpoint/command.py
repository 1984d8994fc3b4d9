"""The group of `relay endpoint`, and all of its commands but `register`."""

import time
from collections.abc import Iterator

import click

from relay.cli.endpoint.register import note, register
from relay.cli.output import Output, ago, pairs, safe, table
from relay.cli.parameters import confirm, parsed, yes_option
from relay.cli.sender_api import SenderApi, sender_command
from relay.cli.subscription import WantedKinds, listed, parse_events, wanted
from relay.config import load
from relay.video_service.api.client import Api
from relay.video_service.api.records import Webhook, WebhookAttempt

RESPONSE_CHARS = 60


@click.group()
def endpoint() -> None:
    """Register, show or change the webhook endpoint, through the sender's API."""


endpoint.add_command(register)


@endpoint.command()
@sender_command
def show(sender: SenderApi) -> Output:
    """Show the webhook endpoint as the video service has it."""
    webhook = sender.ask(lambda api: api.webhook(sender.endpoint))
    rows = [
        ("id", webhook.id),
        ("url", webhook.url or "not said"),
        ("events", listed(webhook.events)),
    ]
    document = {"source": sender.source, "webhook": webhook}
    return Output(document, [f"{sender.source}:", *pairs(rows, indent="  ")])


@endpoint.command()
@sender_command
def test(sender: SenderApi) -> Output:
    """Have the video service send a `webhook.test`."""
    event_id = sender.ask(lambda api: api.send_test(sender.endpoint))
    lines = [
        f"{sender.source}: the video service sends a webhook.test",
        "Look whether it arrived: relay endpoint deliveries",
    ]
    if event_id is not None:
        lines[0] += f", {safe(event_id)}"
    return Output({"source": sender.source, "event_id": event_id}, lines)


@endpoint.command()
@sender_command
def deliveries(sender: SenderApi) -> Output:
    """List the video service's last attempts, the newest first."""
    attempts = sender.ask(lambda api: api.deliveries(sender.endpoint))
    document = {"source": sender.source, "deliveries": attempts}
    # The service does not say what time it is.
    now_ms = time.time_ns() // 1_000_000
    rows = [_row(attempt, now_ms=now_ms) for attempt in attempts]
    return Output(document, table(rows, empty="no attempt yet"))


@endpoint.command()
@yes_option
@sender_command
def remove(sender: SenderApi, *, yes: bool) -> Output:
    """Remove the webhook endpoint: the video service sends nothing more to it.

    The running relay is notified, and its status shows it until events come again.
    """
    question = f"Remove {sender.endpoint} of source {sender.source}? Nothing can arrive then."
    confirm(safe(question), yes=yes)
    sender.ask(lambda api: api.remove(sender.endpoint))
    unnoted = note(sender, "removed", sender.endpoint)
    document = {"source": sender.source, "removed": sender.endpoint, "noted": unnoted is None}
    return Output(document, _removed(sender, unnoted))


def _removed(sender: SenderApi, unnoted: str | None) -> Iterator[str]:
    yield safe(f"{sender.source}: removed {sender.endpoint}")
    if unnoted is None:
        yield "The relay's status shows it until events come again."
    else:
        yield f"The running relay was not notified, so its status does not show it: {unnoted}"
    yield f"Take `endpoint` out of its [source.api] in {safe(str(sender.file))}."


def _row(attempt: WebhookAttempt, *, now_ms: int) -> dict[str, object]:
    response = attempt.response
    if response is not None and len(response) > RESPONSE_CHARS:
        response = f"{response[:RESPONSE_CHARS]}..."
    return {
        "when": ago(attempt.started_ms, now_ms=now_ms),
        "event": attempt.event,
        "id": attempt.event_id,
        "attempt": attempt.number,
        "state": attempt.state,
        "status": None if attempt.status is None else str(attempt.status),
        "response": response,
    }


@endpoint.command()
@click.option(
    "--set",
    "chosen",
    metavar="LIST",
    callback=parsed(parse_events),
    help="Kinds with commas between them, or `all`.",
)
@click.option("--from-sinks", is_flag=True, help="Set the kinds that the config's sinks take.")
@sender_command
def events(sender: SenderApi, *, chosen: tuple[str, ...] | None, from_sinks: bool) -> Output:
    """Show or change the kinds of events that the endpoint receives."""
    if from_sinks and chosen is not None:
        raise click.UsageError("--set and --from-sinks exclude each other")
    wants = wanted(load(sender.file), sender.source)
    if from_sinks:
        chosen = _of_sinks(wants, sender)
    if chosen is None:
        webhook = sender.ask(lambda api: api.webhook(sender.endpoint))
    else:
        webhook = sender.ask(lambda api: _change(api, sender.endpoint, chosen))
    lacking = wants.lacking(webhook)
    document = {"source": sender.source, "webhook": webhook, "lacking": lacking}
    return Output(document, _received(webhook, lacking, sender))


def _of_sinks(wants: WantedKinds, sender: SenderApi) -> tuple[str, ...]:
    if not wants.kinds:
        # An empty list would mean all of them.
        raise click.ClickException(
            f"no sink takes an event of source {sender.source}, and an endpoint without a kind is "
            "not possible; nothing was changed"
        )
    return wants.events


async def _change(api: Api, endpoint: str, events: tuple[str, ...]) -> Webhook:
    """Change the events, and read them again where the answer does not show them."""
    changed = await api.set_events(endpoint, events)
    return changed if changed.events is not None else await api.webhook(endpoint)


def _received(webhook: Webhook, lacking: tuple[str, ...], sender: SenderApi) -> Iterator[str]:
    yield f"{sender.source}: {safe(webhook.id)} receives {safe(listed(webhook.events))}"
    if lacking:
        yield (
            f"  sinks also want {', '.join(lacking)}: "
            f"relay endpoint events --from-sinks --source {sender.source}"
        )
