"""The `pubsub` sink: each event is one message, delivered when Pub/Sub has given it an id.

brokers.md, section 9; over REST. All messages of one request must have the same ordering key, so
that a batch is a request for each of its keys, side by side.
"""

import hashlib
import os
import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import orjson

from relay.core import timeouts
from relay.core.clock import Clock
from relay.core.config_values import Address, Secret
from relay.core.delivery import SinkResponse
from relay.core.errors import Refused, Temporary
from relay.core.event import Event
from relay.core.proxies import Proxies
from relay.core.setting_errors import Faults
from relay.core.sink import BatchSettings, Outcomes, ProxiedSettings
from relay.outbound import message, watched
from relay.outbound.batching import Chain, Entries, Entry, SplittingSink, cut
from relay.outbound.http import client as http_client
from relay.sinks.pubsub import credentials as google_credentials
from relay.sinks.pubsub import errors as pubsub_failure
from relay.sinks.pubsub import tokens as google_tokens
from relay.sinks.pubsub.api import SCOPE, Topics

MESSAGES_MAX = 1000
BYTES_MAX = 10_000_000
"""Maximum bytes of a request, as JSON; Pub/Sub itself refuses a single message that is larger."""
MESSAGE_MAX = 10 << 20
"""Maximum bytes of a message, whether Google's 10 MB are decimal or not."""
TEXT_MAX = 1024
"""Maximum bytes of an ordering key, and of an attribute's value."""

EMULATOR = "PUBSUB_EMULATOR_HOST"
"""Variable that Google's own clients read, too."""

_ENDPOINT = re.compile(
    r"(https://[A-Za-z0-9.-]+|https?://(localhost|127\.0\.0\.1|\[::1\]))(:[1-9][0-9]{0,4})?/?"
)
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]{1,127}")
_NOT_IN_TOPIC = re.compile(r"[^A-Za-z0-9._~+-]")

_TOPIC = message.Naming(
    re.compile(r"[A-Za-z][A-Za-z0-9._~+%-]{2,}").fullmatch,
    "the topic's name alone: a letter first, 3 to 255 letters, digits and -._~+%",
    255,
    escape=lambda value: _NOT_IN_TOPIC.sub("_", value),
    reserved=(message.Reserved("goog", "Google's own topics"),),
)


class Settings(BatchSettings, ProxiedSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type pubsub."""

    destination: ClassVar[str | None] = "topic"
    project: str
    topic: str = "relay"
    """A template over the event; the topic has to exist."""
    ordering_key: str | None = None
    """A template; without one the video's id. With "" all events may share requests."""
    credentials: Secret | None = None
    """JSON of a service account's key or a login; default: Google's usual places are searched."""
    endpoint_url: str = "https://pubsub.googleapis.com"
    emulator_host: Address | None = None
    """Address of an emulator, used without credentials; default: PUBSUB_EMULATOR_HOST."""
    format: message.Format = "raw"
    concurrency: int = 64

    def batch(self) -> int:
        # All, so that no two requests with one ordering key are in flight at once.
        return self.concurrency


class PubsubSink(SplittingSink):
    """Publishes over REST; one request at a time for each ordering key, so that order is kept."""

    def __init__(
        self,
        settings: Settings,
        *,
        connect: Callable[[], Topics],
        topic: message.DestinationTemplate,
        key: message.MessageTarget | None,
    ) -> None:
        super().__init__(settings)
        self._settings = settings
        self._connect = connect
        self._topics = connect()
        self._topic = topic
        self._key = key

    async def check(self) -> None:
        topics = self._connect()
        try:
            for topic in self._topic.samples(self._settings):
                timeouts.restart()
                await topics.check(topic)
        finally:
            await topics.close()

    def render(self, event: Event) -> dict[str, Any]:
        return {
            "topic": f"projects/{self._settings.project}/topics/{self._topic.render(event)}",
            **self._beside(event, None if self._key is None else self._key.render(event)),
            "body": event.body.decode(errors="replace"),
        }

    async def close(self) -> None:
        await self._topics.close()

    def _prepare(self, event: Event) -> Entry:
        topic = self._topic.resolve(event)
        beside = self._beside(event, None if self._key is None else self._key.resolve(event))
        written = orjson.dumps({"data": b64encode(event.body).decode(), **beside})
        # As JSON it is longer in any case, and encoding it just to count is costly.
        if len(written) > MESSAGE_MAX:
            texts = (text for pair in beside["attributes"].items() for text in pair)
            size = len(event.body) + sum(len(text.encode()) for text in texts)
            if size > MESSAGE_MAX:
                raise Refused(
                    f"{size} bytes are more than the 10 MB that Pub/Sub takes", unsent=True
                )
        return Entry(written, len(written) + 1, topic, beside.get("orderingKey", ""))

    def _beside(self, event: Event, key: str | None) -> dict[str, Any]:
        form = self._settings.format
        named = message.identity(event, form, prefix="ce-")
        if form == "cloudevents":
            named["content-type"] = "application/json"
        if not _fits("".join(named.values())):  # one check is cheaper than many
            named = {name: _fit(value) for name, value in named.items()}
        named |= watched.limited(event, form, prefix="ce-", max_bytes=TEXT_MAX)
        key = (event.video_id() or "") if key is None else key
        return {"attributes": named, "orderingKey": _fit(key)} if key else {"attributes": named}

    def _split(self, entries: Entries) -> list[Chain]:
        """Chain requests that share an ordering key of a topic; the chains run in parallel."""
        alike: defaultdict[tuple[str, str], dict[int, Entry]] = defaultdict(dict)
        for place, entry in entries.items():
            alike[entry.target, entry.key][place] = entry
        return [cut(each, MESSAGES_MAX, BYTES_MAX) for each in alike.values()]

    async def _send_part(self, entries: Sequence[Entry]) -> Outcomes:
        body = b'{"messages":[%b]}' % b",".join(entry.content for entry in entries)
        response = await self._topics.publish(entries[0].target, body)
        silent = Temporary(pubsub_failure.SILENT, status=response.status)
        ids = pubsub_failure.ids(response, len(entries))
        return [SinkResponse(response.status, each) if each else silent for each in ids]


def build(settings: Settings, clock: Clock) -> PubsubSink:
    faults, key = Faults(), None
    load: google_credentials.Load = google_credentials.search
    with faults.collect():
        if _PROJECT.fullmatch(settings.project) is None:
            raise ValueError("project: expected the id of a project, such as my-project-123")
    with faults.collect():
        topic = message.DestinationTemplate(settings.topic, key="topic", naming=_TOPIC)
        topic.samples(settings)
    with faults.collect():
        key = message.optional(settings.ordering_key, settings, key="ordering_key")
    with faults.collect():
        emulator = _emulator(settings)
        url = f"http://{emulator}" if emulator is not None else _endpoint(settings.endpoint_url)
    with faults.collect():
        if settings.credentials is not None:
            load = google_credentials.from_json(settings.credentials.reveal())
    faults.raise_all()
    # An emulator is a developer's own, and near.
    proxies = Proxies() if emulator else Proxies.of(settings.outbound, settings.proxy_url)

    def connect() -> Topics:
        tokens = None
        if emulator is None:
            transport = google_credentials.Transport(settings.timeout, proxies)
            tokens = google_tokens.GoogleTokens(load, clock, scope=SCOPE, transport=transport)
        return Topics(
            f"{url}/v1/projects/{settings.project}",
            tokens=tokens,
            clock=clock,
            client=http_client.HttpClient(
                timeout_s=settings.timeout.seconds,
                connections=settings.concurrency,
                proxies=proxies,
            ),
        )

    return PubsubSink(settings, connect=connect, topic=topic, key=key)


def _emulator(settings: Settings) -> Address | None:
    named = os.environ.get(EMULATOR)
    if settings.emulator_host is not None or not named:
        return settings.emulator_host
    try:
        return Address.parse(named)
    except ValueError as error:
        raise ValueError(f"emulator_host: {EMULATOR}: {error}") from None


def _endpoint(text: str) -> str:
    # Over http:// the token could be read on the way.
    if _ENDPOINT.fullmatch(text) is None:
        raise ValueError("endpoint_url: expected https:// and a host")
    return text.rstrip("/")


def _fit(text: str) -> str:
    """Hash a key that is longer than Pub/Sub allows."""
    return text if _fits(text) else hashlib.sha256(text.encode()).hexdigest()


def _fits(text: str) -> bool:
    # A character has at most four bytes.
    return 4 * len(text) <= TEXT_MAX or len(text.encode()) <= TEXT_MAX
