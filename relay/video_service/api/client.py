"""Client of the video service's API: what the relay asks of it, in typed answers.

video-service.md, section 4; docs/video-service.md lists the assumptions.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Self
from urllib.parse import quote

from relay.core.api_settings import ApiSettings
from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.request_budget import RequestBudgets
from relay.video_service.api import budget, decoding
from relay.video_service.api.budget import PROCESS
from relay.video_service.api.errors import Reason, ServiceApiError
from relay.video_service.api.exchange import Exchange
from relay.video_service.api.fields import Fields
from relay.video_service.api.records import (
    Registration,
    SessionPage,
    Video,
    Watched,
    Webhook,
    WebhookAttempt,
)

_SESSIONS = "/v1/analytics/sessions"
_VIDEOS = "/v1/videos"
_WEBHOOKS = "/v1/webhooks"


class Api:
    """The API with one key; any number of requests may run at once; each raises ServiceApiError.

    Requests wait for the key's budget and for a 429 to end; callers set their own time limits.
    """

    def __init__(
        self,
        settings: ApiSettings,
        *,
        budgets: RequestBudgets = PROCESS,
        clock: Clock | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        """`budgets` are shared with other users of the same key; `clock` is else the machine's."""
        self._fields = Fields(settings.fields)
        shared = budget.shared(settings.key, budgets)
        self._exchange = exchange or Exchange(settings, budget=shared, clock=clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection; may be called twice."""
        await self._exchange.aclose()

    @property
    def skipped(self) -> int:
        """Number of items in answers that were of no use, such as a video without an id."""
        return self._fields.skipped

    @property
    def delay(self) -> Reason | None:
        """Why answers are late now, if anything is known to hold them up."""
        return self._exchange.delay

    async def sessions(self, *, after: str | None = None) -> AsyncGenerator[SessionPage, None]:
        """Yield the pages of all views, the oldest first, from a place on."""
        places = set[str]()
        while True:
            document = await self._exchange.read(_SESSIONS, {"after": after})
            # In a thread, because a page takes 20 ms, which acknowledgements would wait.
            page = await asyncio.to_thread(decoding.session_page, document, self._fields)
            yield page
            if (after := page.next) is None:
                return
            _expect_new(after, places)

    async def viewer(self, email: str) -> tuple[Watched, ...]:
        """Return what a person has watched; nothing for an unknown one."""
        document = await self._exchange.read("/v1/analytics/viewer", {"email": email})
        return tuple(decoding.watched(document, self._fields))

    async def videos(self) -> AsyncGenerator[Video, None]:
        """Yield the videos of the library and of Trash."""
        after, places = None, set[str]()
        while True:
            document = await self._exchange.read(_VIDEOS, {"after": after})
            for video in decoding.videos(document, self._fields):
                yield video
            if (after := decoding.next_page(document, self._fields)) is None:
                return
            _expect_new(after, places)

    async def check_analytics(self) -> None:
        """Check that the key may read analytics, by the answer that is the smallest."""
        await self._exchange.read("/v1/analytics/live")

    async def webhooks(self) -> tuple[Webhook, ...]:
        document = await self._exchange.read(_WEBHOOKS)
        return tuple(decoding.webhooks(document, self._fields))

    async def webhook(self, endpoint: str) -> Webhook:
        return decoding.webhook(await self._exchange.read(_path(endpoint)), self._fields)

    async def register(self, url: str, events: Iterable[str]) -> Registration:
        """Create a webhook endpoint; no events means all of them."""
        body = {"url": url, "events": list(events)}
        document = await self._exchange.change("POST", _WEBHOOKS, body)
        return decoding.registration(document, self._fields)

    async def set_events(self, endpoint: str, events: Iterable[str]) -> Webhook:
        """Change the kinds that an endpoint receives; none means all of them."""
        body = {"events": list(events)}
        document = await self._exchange.change("PATCH", _path(endpoint), body)
        return decoding.changed_webhook(document, self._fields, endpoint=endpoint)

    async def rotate_secret(self, endpoint: str) -> Secret:
        """Return a new secret; the old one is invalid from the moment of the answer on."""
        document = await self._exchange.change("POST", _path(endpoint, "rotate-secret"))
        return decoding.secret(document, self._fields)

    async def remove(self, endpoint: str) -> None:
        await self._exchange.change("DELETE", _path(endpoint))

    async def send_test(self, endpoint: str) -> str | None:
        """Have a `webhook.test` sent; returns its event's id, if the answer has it."""
        document = await self._exchange.change("POST", _path(endpoint, "test"))
        return self._fields.text(document, "delivery.event_id")

    async def deliveries(self, endpoint: str) -> tuple[WebhookAttempt, ...]:
        """Return the last attempts for an endpoint, the newest first."""
        document = await self._exchange.read(_path(endpoint, "deliveries"))
        return tuple(decoding.attempts(document, self._fields))


def _path(endpoint: str, *parts: str) -> str:
    return "/".join((_WEBHOOKS, quote(endpoint, safe=""), *parts))


def _expect_new(place: str, places: set[str]) -> None:
    """Raise ServiceApiError for a page that was read before: the list would never end."""
    if place in places:
        raise ServiceApiError("broken answer")
    places.add(place)
