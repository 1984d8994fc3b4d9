"""The `redis` sink: each event is one entry of a stream, delivered when XADD has answered.

brokers.md, section 6; a batch is one pipeline.
The sink never trims a stream, because that would drop unread entries.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar
from urllib.parse import SplitResult, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from relay.core import timeouts
from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import Event
from relay.core.setting_errors import Faults
from relay.core.sink import BatchSettings, Outcomes
from relay.outbound import message, sink_url, tls
from relay.outbound.batching import Chain, Entries, Entry, SplittingSink, cut
from relay.outbound.connection_health import ConnectionHealth
from relay.sinks.redis import sentinel as redis_sentinel
from relay.sinks.redis.errors import SENTINEL, UNREADABLE, classify, code

IDEMPOTENT_SINCE = (8, 6)

_KEY = message.Naming(bool, "a key")
"""Redis reserves none."""

_NO_SUCH_ID = "The ID specified in XADD must be greater than 0-0"

_ENTRY_ID = re.compile(rb"[0-9]+-[0-9]+")

LARGE_BYTES = 1 << 20
"""Smallest proto-max-bulk-len that can be set; a longer value breaks the connection."""


class Settings(BatchSettings, tls.TlsSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type redis."""

    destination: ClassVar[str | None] = "stream"
    url: Secret
    """`redis://` or `rediss://`, with user, password and the number of the database."""
    sentinel: redis_sentinel.SentinelSettings | None = None
    """With it, the host in `url` is the name of a master that Sentinels watch."""
    stream: str = "relay"
    format: message.Format = "raw"
    concurrency: int = 32

    def batch(self) -> int:
        # All, because there is one connection, and the server syncs once per batch.
        return self.concurrency


class RedisSink(SplittingSink):
    """Sends over one connection, one batch after the other."""

    def __init__(
        self,
        connect: Callable[[], Redis],
        settings: Settings,
        *,
        stream: message.DestinationTemplate,
        replicas: redis_sentinel.Replicas,
    ) -> None:
        super().__init__(settings)
        self._connect = connect
        self._client = connect()
        self._health = ConnectionHealth()
        self._replicas = replicas
        self._settings = settings
        self._stream = stream
        self._sending = asyncio.Lock()
        self._idempotent: bool | None = None
        """Whether the server supports IDMP; asked again after any failure."""

    async def check(self) -> str | None:
        failure: Exception | None = None
        details: str | None = None
        client = self._connect()
        try:
            await _server_info(client)
            for stream in self._stream.samples(self._settings):
                timeouts.restart()
                failure = failure or await _refusal(client, stream)
            if isinstance(client, redis_sentinel.MasterClient):
                details = await redis_sentinel.check(client)
        except RedisError as error:
            failure = await _meaning(error, client)
        finally:
            await client.aclose()
        if failure is not None:
            raise failure
        return details

    def render(self, event: Event) -> dict[str, Any]:
        return {
            "stream": self._stream.render(event),
            "fields": self._named(event),
            "body": event.body.decode(errors="replace"),
        }

    async def close(self) -> None:
        await self._client.aclose()

    def _prepare(self, event: Event) -> Entry:
        return Entry(
            {**self._named(event), "body": event.body},
            len(event.body),
            target=self._stream.resolve(event),
            # An id is unique in its source only.
            key=f"{event.id}:{event.source}",
        )

    def _named(self, event: Event) -> dict[str, str]:
        named = message.headers(event, self._settings.format, prefix="ce_")
        return {name.removeprefix("relay-"): value for name, value in named.items()}

    def _split(self, entries: Entries) -> list[Chain]:
        """Return batches to send in turn; a large entry goes alone: it may break its connection."""
        return [cut(entries, len(entries), LARGE_BYTES)]

    async def _send_part(self, entries: Sequence[Entry]) -> Outcomes:
        async with self._sending:
            failure: Exception | None = None
            outcomes: Outcomes = ()
            try:
                outcomes = [_outcome(reply) for reply in await self._add(entries)]
            except Exception as error:  # noqa: BLE001  after a bug, the connection is unusable too
                failure = await _meaning(error, self._client)
            if failure is None and not self._health.is_spent(outcomes):
                return outcomes
            # Unread replies would be taken for the next batch's, too.
            self._health = ConnectionHealth()
            self._replicas.forget()
            await self._client.connection_pool.disconnect()
        if failure is not None:
            raise failure
        return outcomes

    async def _add(self, batch: Sequence[Entry]) -> list[bytes | Exception]:
        idempotent, self._idempotent = self._idempotent, None
        if idempotent is None:
            idempotent = _knows_idempotency(await _server_info(self._client))
        largest = max(entry.size for entry in batch)
        if largest > LARGE_BYTES:
            await self._check_size(largest)
        replicas = await self._replicas_of(self._client)
        # If it is cancelled with unread replies, the library disconnects.
        async with self._client.pipeline(transaction=False) as pipeline:
            for entry in batch:
                idmp = (self._settings.name, entry.key.encode()) if idempotent else None
                pipeline.xadd(entry.target, entry.content, idmp=idmp)
            if replicas:
                pipeline.wait(replicas, self._replicas.wait_ms)
            reply = pipeline.execute(raise_on_error=False)
            replies: list[bytes | Exception] = await _readable(reply)
        if replicas and (lack := self._replicas.lack(replies.pop())) is not None:
            return [each if isinstance(each, Exception) else lack for each in replies]
        if not any(isinstance(reply, Exception) for reply in replies):
            self._idempotent = idempotent
        return replies

    async def _replicas_of(self, client: Redis) -> int:
        if isinstance(client, redis_sentinel.MasterClient):
            return await self._replicas.expected(client)
        return 0

    async def _check_size(self, size: int) -> None:
        """Raise Refused for a value beyond the server's limit, where the user may read that."""
        name = "proto-max-bulk-len"
        limits = await _if_permitted(self._client.config_get(name))
        if limits is None:
            return
        with _parsing():
            maximum = int(limits[name] or 0)
        if size > maximum:
            raise Refused(f"{size} bytes are more than the server's {name}", unsent=True)


@contextmanager
def _parsing() -> Iterator[None]:
    """Raise InvalidResponse for a reply that breaks the protocol."""
    try:
        yield
    except UNREADABLE:
        raise InvalidResponse from None


async def _readable(reply: Awaitable[Any]) -> Any:
    with _parsing():
        return await reply


async def _if_permitted(reply: Awaitable[Any]) -> Any:
    """Return a reply; None if the user may not ask, though it may be allowed to XADD."""
    try:
        return await _readable(reply)
    except RedisError as error:
        if code(error) != "NOPERM":
            raise
    return None


async def _server_info(client: Redis) -> Mapping[str, Any]:
    """Return what the server says of itself, nothing where the user may not ask.

    Raises Misconfigured for a Sentinel.
    """
    with _parsing():
        server = dict(await _if_permitted(client.info("server")) or {})
    if server.get("redis_mode") == "sentinel":
        raise Misconfigured(SENTINEL)
    return server


async def _meaning(error: Exception, client: Redis) -> Exception:
    if isinstance(error, MasterNotFoundError) and isinstance(client, redis_sentinel.MasterClient):
        return await redis_sentinel.why_no_master(client)
    return classify(error)


def _knows_idempotency(server: Mapping[str, Any]) -> bool:
    if not server:
        return False
    with _parsing():
        version = str(server["redis_version"]).split(".")
        return tuple(int(number) for number in version[:2]) >= IDEMPOTENT_SINCE


async def _refusal(client: Redis, stream: str) -> SinkError | None:
    """Ask for all that a send needs, and write nothing; return or raise why it would fail.

    No entry can have the id 0-0. The server says so last: after the user's rights to the command
    and the key, its role, its memory, its disk and its replicas.
    """
    kind = await _if_permitted(client.type(stream))
    if kind not in (None, b"none", b"stream"):
        return Misconfigured(f"the key {stream} holds something else than a stream")
    try:
        await _readable(client.xadd(stream, {"relay": "check"}, id="0-0"))
    except ResponseError as error:
        if str(error).startswith(_NO_SUCH_ID):
            return None
        raise
    return Temporary("the server took an entry that no stream can have")


def _outcome(reply: object) -> SinkResponse | Exception:
    if isinstance(reply, Exception):
        return classify(reply)
    if not isinstance(reply, bytes) or _ENTRY_ID.fullmatch(reply) is None:
        return Temporary("the answer to XADD is no entry's id, so that it confirms nothing")
    return SinkResponse(excerpt=reply.decode())


def build(settings: Settings, clock: Clock) -> RedisSink:
    faults, files = Faults(), dict[str, Any]()
    with faults.collect():
        stream = message.DestinationTemplate(settings.stream, key="stream", naming=_KEY)
        stream.samples(settings)
    with faults.collect():
        if settings.sentinel is not None and not settings.sentinel.hosts:
            raise ValueError("sentinel.hosts: is empty: expected at least one")
    with faults.collect():
        if sink_url.uses_tls(_url(settings).scheme, settings, secure="rediss"):
            files = _tls(settings)
    faults.raise_all()
    replicas = redis_sentinel.Replicas(clock, settings.timeout.seconds)
    return RedisSink(_connector(settings, files), settings, stream=stream, replicas=replicas)


def _connector(settings: Settings, files: dict[str, Any]) -> Callable[[], Redis]:
    options = {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),  # the relay retries, and reports it
        "socket_timeout": None,  # it would apply to each reply; a batch has one limit for all
        "socket_connect_timeout": settings.timeout.seconds,
        **files,
    }
    if settings.sentinel is None:
        return partial(Redis.from_url, settings.url.reveal(), **options)
    url = _url(settings)
    options["ssl"] = url.scheme == "rediss"
    return redis_sentinel.Way(url, settings.sentinel, settings.timeout.seconds, options).connect


def _url(settings: Settings) -> SplitResult:
    url = sink_url.parse(settings.url, schemes=("redis", "rediss"), kind=urlsplit)
    if url.query or re.fullmatch(r"/?[0-9]*", url.path) is None:
        raise ValueError("url: expected nothing but the number of a database after the host")
    if settings.sentinel is not None:
        redis_sentinel.check_url(url)
    return url


def _tls(settings: Settings) -> dict[str, Any]:
    tls.context(settings)  # the library loads them too, but its errors say less
    return {
        "ssl_ca_certs": settings.ca_file,
        "ssl_certfile": settings.client_cert_file,
        "ssl_keyfile": settings.client_key_file,
        "ssl_password": "",
    }
