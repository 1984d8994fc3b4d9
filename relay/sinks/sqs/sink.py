"""The `sqs` sink: each event is one message, delivered when SQS lists it as successful.

brokers.md, section 8; a batch is as many SendMessageBatch as it needs, side by side, or one after
another where large messages need many, or a FIFO queue's order.
"""

import asyncio
import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any, ClassVar
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.delivery import SinkResponse
from relay.core.errors import Refused, SinkError, Temporary
from relay.core.event import Event
from relay.core.proxies import Proxies
from relay.core.setting_errors import Faults
from relay.core.sink import BatchSettings, Outcomes, ProxiedSettings
from relay.outbound import message
from relay.outbound.batching import Chain, Entries, Entry, SplittingSink, cut
from relay.outbound.connection_health import ConnectionHealth
from relay.sinks.sqs import http_session
from relay.sinks.sqs.errors import UNREADABLE, classify, of_entry

ENTRIES_MAX = 10
ATTRIBUTES_MAX = 10
"""Maximum number of attributes of a message."""

_REPEATED = frozenset({"relay-event", "relay-reconstructed"})
BYTES_MAX = 1 << 20
"""Maximum bytes of a message, and of a request, with names, types and values of attributes."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Settings(BatchSettings, ProxiedSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type sqs."""

    adopts_environment: ClassVar[bool] = True
    queue_url: str
    region: str | None = None
    """Default: the one in `queue_url`, or that of the AWS environment."""
    endpoint_url: str | None = None
    aws_access_key_id: Secret | None = None
    """With aws_secret_access_key, in place of the AWS credential chain."""
    aws_secret_access_key: Secret | None = None
    group: str | None = None
    """A template for MessageGroupId; without one a FIFO queue gets the video's id."""
    format: message.Format = "raw"
    concurrency: int = 40

    @property
    def is_fifo(self) -> bool:
        return self.queue_url.endswith(".fifo")

    def batch(self) -> int:
        if self.is_fifo:
            # All, so that no two requests with one group are in flight at once.
            return self.concurrency
        # No request leaves half full while more events wait.
        half = super().batch()
        return half - half % ENTRIES_MAX or min(ENTRIES_MAX, self.concurrency)


class SqsSink(SplittingSink):
    """Sends over one client, a few requests at once; replaced as `ConnectionHealth` says."""

    def __init__(self, settings: Settings, group: message.MessageTarget | None) -> None:
        super().__init__(settings)
        self._settings = settings
        self._group = group
        self._fifo = settings.is_fifo
        self._requests = count()
        self._lock = asyncio.Lock()
        self._client: _Client | None = None
        """The one for the next send."""

    async def check(self) -> str:
        client = await self._open()
        try:
            await self._call(client, "get_queue_attributes", AttributeNames=["QueueArn"])
        finally:
            await client.exit.aclose()
        return "the queue is there; SQS cannot be asked for the right to send"

    def render(self, event: Event) -> dict[str, Any]:
        return {
            "queue_url": self._settings.queue_url,
            **self._ids(event, self._group.render(event) if self._group else None),
            "attributes": self._named(event),
            "body": event.body.decode(errors="replace"),
        }

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.exit.aclose()

    def _prepare(self, event: Event) -> Entry:
        body = event.body.decode()
        named = self._named(event)
        if any(_NOT_XML.search(text) for text in (body, *named.values())):
            raise Refused("it holds a character that SQS does not take", unsent=True)
        size = len(event.body) + sum(
            len(f"{name}String{value}".encode()) for name, value in named.items()
        )
        if size > BYTES_MAX:
            raise Refused(f"{size} bytes are more than the {BYTES_MAX} that SQS takes", unsent=True)
        fields = {
            "MessageBody": body,
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value} for name, value in named.items()
            },
            **self._ids(event, self._group.resolve(event) if self._group else None),
        }
        return Entry(fields, size)

    def _named(self, event: Event) -> dict[str, str]:
        named = message.headers(event, self._settings.format, prefix="ce-")
        if event.reconstructed and len(named) > ATTRIBUTES_MAX:
            # The binding's own attributes say the same.
            named = {name: named[name] for name in named if name not in _REPEATED}
        return {name: value for name, value in named.items() if value}

    def _ids(self, event: Event, group: str | None) -> dict[str, str]:
        if not self._fifo:
            return {"MessageGroupId": _fit(group)} if group else {}
        # Without a video there is nothing to keep in order.
        chosen = group or event.video_id() or event.id
        # Two sources may use one id for two events, and SQS would silently drop the second.
        identity = f"{event.source}/{event.id}"
        return {"MessageGroupId": _fit(chosen), "MessageDeduplicationId": _fit(identity)}

    def _split(self, entries: Entries) -> list[Chain]:
        """Return requests as full as SQS allows; no more chains of them than connections.

        In a FIFO queue all entries of a group are in one chain, so that none overtakes another.
        """
        if self._fifo:
            return [cut(lane, ENTRIES_MAX, BYTES_MAX) for lane in _lanes(entries)]
        parts = cut(entries, ENTRIES_MAX, BYTES_MAX)
        chains = math.ceil(len(entries) / ENTRIES_MAX)
        return [parts[start::chains] for start in range(chains)]

    async def _send_part(self, entries: Sequence[Entry]) -> Outcomes:
        # Requests share no ids, so a response to one cannot be taken for another's.
        request = next(self._requests)
        ids = [f"{request}-{number}" for number in range(len(entries))]
        response = await self._send(
            Entries=[{"Id": id_, **each.content} for id_, each in zip(ids, entries, strict=True)]
        )
        outcomes: dict[str, SinkResponse | Exception] = {
            entry.get("Id", ""): SinkResponse(200, entry["MessageId"])
            for entry in response.get("Successful", ())
            if entry.get("MessageId")
        }
        outcomes |= {entry.get("Id", ""): of_entry(entry) for entry in response.get("Failed", ())}
        silent = Temporary("SQS did not say what became of the message")
        return [outcomes.get(id_, silent) for id_ in ids]

    async def _send(self, **parameters: object) -> Any:
        client = await self._connect()
        client.calls += 1
        try:
            return await self._call(client, "send_message_batch", **parameters)
        except SinkError as error:
            # A new client reads the credentials anew, too.
            if client.health.is_spent([error]) and client is self._client:
                self._client = None
            raise
        finally:
            client.calls -= 1
            if client is not self._client and not client.calls:
                await client.exit.aclose()

    async def _call(self, client: "_Client", operation: str, **parameters: object) -> Any:
        try:
            with suppress(*UNREADABLE):
                return await getattr(client.api, operation)(
                    QueueUrl=self._settings.queue_url, **parameters
                )
            failure: Exception = Temporary("no answer that can be understood")
        except Exception as error:  # noqa: BLE001  a bug is raised as it is
            failure = classify(error)
        raise failure

    async def _connect(self) -> "_Client":
        async with self._lock:
            if self._client is None:
                self._client = await self._open()
            return self._client

    async def _open(self) -> "_Client":
        try:
            loop = asyncio.get_running_loop()
            session = await loop.run_in_executor(_PREPARATION, _session)
            session.set_default_client_config(_proxying(self._settings))
            client = session.create_client("sqs", **_options(self._settings))
            stack = AsyncExitStack()
            return _Client(await stack.enter_async_context(client), stack)
        except Exception as error:  # noqa: BLE001  a bug is raised as it is
            failure = classify(error)
        raise failure


@dataclass(eq=False, slots=True)
class _Client:
    """The library's client, with its connections and credentials, and the sends under way on it."""

    api: Any
    exit: AsyncExitStack
    calls: int = 0
    health: ConnectionHealth = field(default_factory=ConnectionHealth)


_PREPARATION = ThreadPoolExecutor(1, "sqs")
"""One thread for all sinks: several would keep the event loop from Python's lock for as long as
they work, whereas it gets the lock from one within milliseconds."""


def _session() -> Any:
    """Return a session of which a client is soon made; takes 10 ms, the first one 150."""
    session = get_session()
    session.register_component("data_loader", _service_descriptions())
    return session


@cache
def _service_descriptions() -> Any:
    session = get_session()
    session.warm_up_loader_caches("sqs")
    return session.get_component("data_loader")


def _proxying(settings: Settings) -> Any:
    """Return the session's way out; None to leave it to the client, which asks the environment."""
    outbound = settings.outbound
    if not (settings.proxy_url or outbound.proxy_url or outbound.proxy_from_environment):
        return None
    return http_session.config(Proxies.of(outbound, settings.proxy_url))


def _lanes(entries: Entries) -> Iterator[Entries]:
    """Part the entries of a FIFO queue by group, with enough in each lane to fill a request."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for place, entry in entries.items():
        groups[entry.content["MessageGroupId"]].append(place)
    lane: list[int] = []
    for places in groups.values():
        lane += places
        if len(lane) >= ENTRIES_MAX:
            yield {place: entries[place] for place in sorted(lane)}
            lane = []
    if lane:
        yield {place: entries[place] for place in sorted(lane)}


def _requests_at_once(settings: Settings) -> int:
    """Enough for all chains of full batches."""
    return (settings.slots() // settings.batch()) * math.ceil(settings.batch() / ENTRIES_MAX)


def build(settings: Settings, clock: Clock) -> SqsSink:  # noqa: ARG001
    faults, group = Faults(), None
    for key in ("queue_url", "endpoint_url"):
        with faults.collect():
            value = getattr(settings, key)
            if value is not None and not _is_url(value):
                raise ValueError(f"{key}: expected http:// or https:// and a host, no password")
    with faults.collect():
        if (settings.aws_access_key_id is None) != (settings.aws_secret_access_key is None):
            raise ValueError("aws_access_key_id: expected together with aws_secret_access_key")
    with faults.collect():
        group = message.optional(settings.group, settings, key="group")
    with faults.collect():
        if settings.enrich and settings.format == "cloudevents":
            raise ValueError(
                'enrich: does not go with format = "cloudevents", because SQS takes '
                f"{ATTRIBUTES_MAX} attributes, and CloudEvents needs all of them"
            )
    faults.raise_all()
    return SqsSink(settings, group)


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname) and url.password is None


def _options(settings: Settings) -> dict[str, Any]:
    match = re.match(r"https?://sqs\.([a-z0-9-]+)\.amazonaws\.com", settings.queue_url)
    key, secret = settings.aws_access_key_id, settings.aws_secret_access_key
    return {
        "region_name": settings.region or (match[1] if match else None),
        "endpoint_url": settings.endpoint_url,
        "aws_access_key_id": key and key.reveal(),
        "aws_secret_access_key": secret and secret.reveal(),
        "config": AioConfig(
            connect_timeout=settings.timeout.seconds,
            read_timeout=settings.timeout.seconds,
            max_pool_connections=_requests_at_once(settings),
            retries={"total_max_attempts": 1},  # the relay retries, and reports it
        ),
    }


def _fit(text: str) -> str:
    """Hash anything that SQS refuses as an id: it allows 128 letters, digits and punctuation."""
    return text if _ID.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()
