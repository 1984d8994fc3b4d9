"""Which kinds of events a run gives back: those that the endpoint receives, or fewer."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from relay.core.event import SUBSCRIBABLE
from relay.video_service.api.errors import ApiError, Reason
from relay.video_service.api.records import Webhook

_OF_THE_PATH: Collection[Reason] = ("no access", "not found", "request refused", "broken answer")
"""The key may not see endpoints, or the API has them elsewhere: the rest of it may work."""


class Subscription(msgspec.Struct, frozen=True):
    """The kinds that an endpoint receives; all of them where that is not known."""

    kinds: frozenset[str]
    unknown: str | None = None
    """Why they are not known."""


class Endpoints(Protocol):
    """The part of an API's client that is asked."""

    async def webhooks(self) -> Sequence[Webhook]: ...

    async def webhook(self, endpoint: str) -> Webhook: ...


async def subscription(api: Endpoints, endpoint: str | None) -> Subscription:
    """Ask what the endpoint receives; without its id, what any endpoint does. Raises ApiError."""
    everything = frozenset(SUBSCRIBABLE)
    try:
        endpoints = await api.webhooks() if endpoint is None else (await api.webhook(endpoint),)
    except ApiError as error:
        if error.reason not in _OF_THE_PATH:
            raise
        return Subscription(everything, str(error))
    if not endpoints:
        return Subscription(everything, "the API lists no endpoint")
    if any(each.events is None for each in endpoints):
        return Subscription(everything, "the API does not say them")
    if any(not each.events for each in endpoints):
        return Subscription(everything)
    return Subscription(frozenset(kind for each in endpoints for kind in each.events or ()))
