"""`relay endpoint events`: the kinds of events that the endpoint receives."""

from collections.abc import Iterator

import click

from relay.cli.output import safe
from relay.cli.parameters import parsed
from relay.cli.printing import Output
from relay.cli.sender_api import SenderApi, sender_command
from relay.cli.subscription import Subscription, listed, parse_events, wanted
from relay.config import load
from relay.video_service.api.client import Api
from relay.video_service.api.records import Webhook


@click.command()
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
    return Output(document, _lines(webhook, lacking, sender))


def _of_sinks(wants: Subscription, sender: SenderApi) -> tuple[str, ...]:
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


def _lines(webhook: Webhook, lacking: tuple[str, ...], sender: SenderApi) -> Iterator[str]:
    yield f"{sender.source}: {safe(webhook.id)} receives {safe(listed(webhook.events))}"
    if lacking:
        yield (
            f"  sinks also want {', '.join(lacking)}: "
            f"relay endpoint events --from-sinks --source {sender.source}"
        )
