"""The `redis` sink: each event is one entry of a stream, delivered when XADD has answered.

brokers.md, section 6; nothing here trims a stream, for that would drop what nobody has read.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from relay import message, tls
from relay.clock import Clock
from relay.delivery import Answer
from relay.errors import Misconfigured, Refused, SinkError, Temporary
from relay.event import Event
from relay.settings import Secret
from relay.sink import SinkSettings

MEANINGS: Mapping[str, tuple[type[SinkError], str]] = {
    "NOAUTH": (Misconfigured, "the server asks for a password"),
    "WRONGPASS": (Misconfigured, "wrong user or password"),
    "NOPERM": (Misconfigured, "the user may not XADD to this stream"),
    "WRONGTYPE": (Misconfigured, "the key of the stream holds something else"),
    "MOVED": (Misconfigured, "the stream lives on another node of the cluster"),
    "OOM": (Temporary, "the server is at its maxmemory"),
    "LOADING": (Temporary, "the server is loading its data"),
    "READONLY": (Temporary, "the server is a read-only replica"),
    "MASTERDOWN": (Temporary, "the server has lost its master"),
    "MISCONF": (Temporary, "the server cannot write to its disk"),
    "NOREPLICAS": (Temporary, "the server has too few replicas"),
    "CLUSTERDOWN": (Temporary, "the cluster is down"),
}
"""The first word of the server's error; what is not here is taken for temporary."""

IDEMPOTENT_SINCE = (8, 6)
LARGE_BYTES = 1 << 20
"""The least proto-max-bulk-len that can be set; what is beyond it cuts the connection off."""


class Settings(SinkSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type redis."""

    url: Secret
    """`redis://` or `rediss://`, with user, password and the number of the database."""
    stream: str = "relay"
    format: message.Format = "raw"
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    concurrency: int = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """One event on its way, and who waits for the server's reply."""

    stream: str
    fields: dict[Any, Any]
    key: bytes
    size: int
    reply: asyncio.Future[bytes | Exception]


class RedisSink:
    """Sends over one connection; what comes while a batch is on its way makes up the next."""

    def __init__(self, client: Redis, settings: Settings, *, stream: message.Target) -> None:
        self._client = client
        self._settings = settings
        self._stream = stream
        self._waiting: list[Entry] = []
        self._sending: asyncio.Task[None] | None = None
        self._idempotent: bool | None = None
        """Whether the server knows IDMP; asked anew after every failure."""

    async def send(self, event: Event) -> Answer:
        entry = self._entry(event)
        self._waiting.append(entry)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_waiting())
        reply = await entry.reply
        if isinstance(reply, bytes):
            return Answer(excerpt=reply.decode(errors="replace"))
        raise _failure(reply)

    async def check(self) -> None:
        failure: Exception | None = None
        try:
            await self._client.ping()
            for stream in self._stream.samples(self._settings):
                if await self._client.type(stream) not in (b"none", b"stream"):
                    failure = Misconfigured(f"the key {stream} holds something else than a stream")
        except RedisError as error:
            # A user who may XADD need not be allowed to ask for a type.
            failure = None if _code(error) == "NOPERM" else _failure(error)
        if failure is not None:
            raise failure

    def render(self, event: Event) -> dict[str, Any]:
        return {
            "stream": self._stream.render(event),
            "fields": self._named(event),
            "body": event.body.decode(errors="replace"),
        }

    async def close(self) -> None:
        task, self._sending = self._sending, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await self._client.aclose()

    def _entry(self, event: Event) -> Entry:
        return Entry(
            self._stream.resolve(event),
            {**self._named(event), "body": event.body},
            # An id is unique in its source only.
            f"{event.id}:{event.source}".encode(),
            len(event.body),
            asyncio.get_running_loop().create_future(),
        )

    def _named(self, event: Event) -> dict[str, str]:
        named = message.headers(event, self._settings.format, prefix="ce_")
        return {name.removeprefix("relay-"): value for name, value in named.items()}

    async def _send_waiting(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            try:
                replies = await self._add(batch)
            except Exception as error:  # noqa: BLE001  those who wait have to know, whatever it is
                replies = [error] * len(batch)
                # What is still to be read there would answer for the next batch.
                await self._client.connection_pool.disconnect()
            for entry, reply in zip(batch, replies, strict=True):
                if isinstance(reply, Exception):
                    self._idempotent = None
                if not entry.reply.done():
                    entry.reply.set_result(reply)

    def _next_batch(self) -> list[Entry]:
        waiting = [entry for entry in self._waiting if not entry.reply.done()]
        # A large one goes alone, for it can be refused, and must not take others along.
        large = next((n for n, each in enumerate(waiting) if each.size > LARGE_BYTES), len(waiting))
        count = large or 1
        self._waiting = waiting[count:]
        return waiting[:count]

    async def _add(self, batch: Sequence[Entry]) -> list[bytes | Exception]:
        if self._idempotent is None:
            self._idempotent = await self._knows_idempotency()
        if any(entry.size > LARGE_BYTES for entry in batch):
            await self._check_size(batch[0].size)
        producer = self._settings.name if self._idempotent else None
        async with self._client.pipeline(transaction=False) as pipeline:
            for entry in batch:
                idmp = (producer, entry.key) if producer is not None else None
                pipeline.xadd(entry.stream, entry.fields, idmp=idmp)
            return await pipeline.execute(raise_on_error=False)

    async def _check_size(self, size: int) -> None:
        """Raises Refused; without the right to ask, only the server can tell."""
        name = "proto-max-bulk-len"
        try:
            limit = int((await self._client.config_get(name))[name] or 0)
        except RedisError as error:
            if _code(error) == "NOPERM":
                return
            raise
        if size > limit:
            raise Refused(f"{size} bytes are more than the server's {name}")

    async def _knows_idempotency(self) -> bool:
        try:
            version = str((await self._client.info("server"))["redis_version"])
        except RedisError as error:
            if _code(error) == "NOPERM":
                return False
            raise
        return tuple(int(number) for number in version.split(".")[:2]) >= IDEMPOTENT_SINCE


def build(settings: Settings, clock: Clock) -> RedisSink:  # noqa: ARG001
    stream = message.Target(settings.stream, key="stream")
    if not all(stream.samples(settings)):
        raise ValueError("stream: is empty")
    is_tls = _check_url(settings)
    client = Redis.from_url(
        settings.url.reveal(),
        protocol=2,
        retry=Retry(NoBackoff(), 0),  # the relay tries again by itself, and says so
        socket_timeout=settings.timeout.seconds,
        socket_connect_timeout=settings.timeout.seconds,
        **(_tls(settings) if is_tls else {}),
    )
    return RedisSink(client, settings, stream=stream)


def _check_url(settings: Settings) -> bool:
    """Whether it asks for TLS."""
    try:
        url = urlsplit(settings.url.reveal())
        usable = url.hostname is not None and url.port != 0
    except ValueError:
        usable = False
    if not usable or url.scheme not in ("redis", "rediss"):
        raise ValueError("url: expected redis:// or rediss:// and a host")
    if url.query or re.fullmatch(r"/?[0-9]*", url.path) is None:
        raise ValueError("url: expected nothing but the number of a database after the host")
    if tls.is_asked_for(settings) and url.scheme != "rediss":
        raise ValueError("url: expected rediss://, because TLS files are given")
    return url.scheme == "rediss"


def _tls(settings: Settings) -> dict[str, Any]:
    tls.context(settings)  # the library loads them by itself, and says less of what is wrong
    return {
        "ssl_ca_certs": settings.ca_file,
        "ssl_certfile": settings.client_cert_file,
        "ssl_keyfile": settings.client_key_file,
        "ssl_password": "",
    }


def _code(error: Exception) -> str:
    """The first word of what the server said."""
    status = getattr(error, "status_code", None)
    return str(status or str(error).partition(" ")[0])


def _failure(error: Exception) -> Exception:
    if not isinstance(error, RedisError | OSError):
        return error  # a bug, and not for us to hide
    if _code(error) in MEANINGS:
        kind, text = MEANINGS[_code(error)]
        return kind(f"{_code(error)}: {text}")
    for cause in _causes(error):
        of_tls = tls.failure(cause, peer="server")
        if of_tls is not None:
            return of_tls
        match cause:
            case AuthenticationError():
                return Misconfigured("wrong user or password")
            case RedisTimeout() | TimeoutError():
                return Temporary("no answer in time")
            case ConnectionRefusedError():
                return Temporary("connection refused")
    return Temporary("could not connect, or the connection was lost")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
