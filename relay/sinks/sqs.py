"""The `sqs` sink: each event is one message, delivered when SQS lists it as taken.

brokers.md, section 8; events that wait side by side share one SendMessageBatch.
"""

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ReadTimeoutError,
    SSLError,
)

from relay import message
from relay.clock import Clock
from relay.delivery import Answer
from relay.errors import Misconfigured, Refused, SinkError, Temporary
from relay.event import Event
from relay.settings import Secret
from relay.sink import SinkSettings

ENTRIES_MAX = 10
BYTES_MAX = 1 << 20
"""Of one message, and of one batch; names, types and values of attributes count."""
BATCHES = 4
"""Requests on their way at once."""

MISCONFIGURED: Mapping[str, str] = {
    "AccessDenied": "the credentials may not do this on the queue",
    "ExpiredToken": "the credentials have expired",
    "InvalidAddress": "`queue_url` is no queue's",
    "InvalidClientTokenId": "the access key is unknown",
    "InvalidSecurity": "the request is not signed as the queue wants it",
    "KmsAccessDenied": "the credentials may not use the queue's key",
    "KmsDisabled": "the queue's key is disabled",
    "KmsNotFound": "the queue's key does not exist",
    "MissingAuthenticationToken": "the queue asks for credentials",
    "NonExistentQueue": "the queue does not exist",
    "QueueDoesNotExist": "the queue does not exist",
    "SignatureDoesNotMatch": "the secret key is wrong",
    "UnrecognizedClient": "the access key is unknown",
}
REFUSED = frozenset(
    {"InvalidMessageContents", "InvalidParameterValue", "BatchRequestTooLong", "MessageTooLong"}
)

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Settings(SinkSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type sqs."""

    queue_url: str
    region: str | None = None
    """Else the one in `queue_url`, or that of the AWS environment."""
    endpoint_url: str | None = None
    aws_access_key_id: Secret | None = None
    """With aws_secret_access_key, in place of the AWS credential chain."""
    aws_secret_access_key: Secret | None = None
    group: str | None = None
    """A template for MessageGroupId; without one a FIFO queue gets the video's id."""
    format: message.Format = "raw"
    concurrency: int = 40


@dataclass(frozen=True, slots=True)
class Entry:
    """One event on its way; its outcome is an Answer or why there is none."""

    fields: dict[str, Any]
    size: int
    outcome: asyncio.Future[Answer | Exception]


class SqsSink:
    """Sends over one client; what comes while all batches are on their way makes up the next."""

    def __init__(self, settings: Settings, group: message.Target | None) -> None:
        self._settings = settings
        self._group = group
        self._fifo = settings.queue_url.endswith(".fifo")
        self._waiting: list[Entry] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()
        self._exit = AsyncExitStack()
        self._client: Any = None

    async def send(self, event: Event) -> Answer:
        entry = self._entry(event)
        self._waiting.append(entry)
        if len(self._sending) < BATCHES:
            task = asyncio.create_task(self._send_waiting())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        outcome = await entry.outcome
        if isinstance(outcome, Answer):
            return outcome
        raise outcome

    async def check(self) -> None:
        failure: Exception | None = None
        try:
            client = await self._connect()
            await client.get_queue_attributes(
                QueueUrl=self._settings.queue_url, AttributeNames=["QueueArn"]
            )
        except (BotoCoreError, ClientError, OSError) as error:
            failure = _failure(error)
        if failure is not None:
            raise failure

    def render(self, event: Event) -> dict[str, Any]:
        return {
            "queue_url": self._settings.queue_url,
            **self._ids(event, self._group.render(event) if self._group else None),
            "attributes": self._named(event),
            "body": event.body.decode(errors="replace"),
        }

    async def close(self) -> None:
        tasks = set(self._sending)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._client = None
        await self._exit.aclose()

    def _entry(self, event: Event) -> Entry:
        body = event.body.decode()
        named = self._named(event)
        if any(_NOT_XML.search(text) for text in (body, *named.values())):
            raise Refused("it holds a character that SQS does not take")
        size = len(event.body) + sum(
            len(f"{name}String{value}".encode()) for name, value in named.items()
        )
        if size > BYTES_MAX:
            raise Refused(f"{size} bytes are more than the {BYTES_MAX} that SQS takes")
        fields = {
            "MessageBody": body,
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value} for name, value in named.items()
            },
            **self._ids(event, self._group.resolve(event) if self._group else None),
        }
        return Entry(fields, size, asyncio.get_running_loop().create_future())

    def _named(self, event: Event) -> dict[str, str]:
        named = message.headers(event, self._settings.format, prefix="ce-")
        return {name: value for name, value in named.items() if value}

    def _ids(self, event: Event, group: str | None) -> dict[str, str]:
        if not self._fifo:
            return {"MessageGroupId": _fit(group)} if group else {}
        # Without a video there is nothing to keep in order.
        chosen = group or event.video_id() or event.id
        return {"MessageGroupId": _fit(chosen), "MessageDeduplicationId": _fit(event.id)}

    async def _send_waiting(self) -> None:
        while batch := self._next_batch():
            await self._send_batch(batch)

    def _next_batch(self) -> list[Entry]:
        waiting = [entry for entry in self._waiting if not entry.outcome.done()]
        count = size = 0
        for entry in waiting[:ENTRIES_MAX]:
            size += entry.size
            if size > BYTES_MAX:
                break
            count += 1
        self._waiting = waiting[count:]
        return waiting[:count]

    async def _send_batch(self, batch: Sequence[Entry]) -> None:
        outcomes: Sequence[Answer | Exception]
        try:
            outcomes = await self._add(batch)
        except Exception as error:  # noqa: BLE001  those who wait have to know, whatever it is
            outcomes = [_failure(error) for _ in batch]
            if len(batch) > 1 and isinstance(outcomes[0], Refused):
                # One event's own fault must not fail its neighbours.
                for entry in batch:
                    await self._send_batch([entry])
                return
        for entry, outcome in zip(batch, outcomes, strict=True):
            if not entry.outcome.done():
                entry.outcome.set_result(outcome)

    async def _add(self, batch: Sequence[Entry]) -> list[Answer | Exception]:
        client = await self._connect()
        answer = await client.send_message_batch(
            QueueUrl=self._settings.queue_url,
            Entries=[{"Id": str(number), **each.fields} for number, each in enumerate(batch)],
        )
        outcomes: dict[str, Answer | Exception] = {
            each["Id"]: Answer(200, each.get("MessageId", ""))
            for each in answer.get("Successful", ())
        }
        outcomes |= {each["Id"]: _entry_failure(each) for each in answer.get("Failed", ())}
        silent = Temporary("SQS did not say what became of the message")
        return [outcomes.get(str(number), silent) for number in range(len(batch))]

    async def _connect(self) -> Any:
        async with self._lock:
            if self._client is None:
                client = get_session().create_client("sqs", **_options(self._settings))
                self._client = await self._exit.enter_async_context(client)
            return self._client


def build(settings: Settings, clock: Clock) -> SqsSink:  # noqa: ARG001
    for key in ("queue_url", "endpoint_url"):
        value = getattr(settings, key)
        if value is not None and not _is_url(value):
            raise ValueError(f"{key}: expected http:// or https:// and a host, without a password")
    if (settings.aws_access_key_id is None) != (settings.aws_secret_access_key is None):
        raise ValueError("aws_access_key_id: needs aws_secret_access_key, and the other way round")
    group = None if settings.group is None else message.Target(settings.group, key="group")
    if group is not None:
        group.samples(settings)
    return SqsSink(settings, group)


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname) and url.password is None


def _options(settings: Settings) -> dict[str, Any]:
    found = re.match(r"https?://sqs\.([a-z0-9-]+)\.amazonaws\.com", settings.queue_url)
    key, secret = settings.aws_access_key_id, settings.aws_secret_access_key
    return {
        "region_name": settings.region or (found[1] if found else None),
        "endpoint_url": settings.endpoint_url,
        "aws_access_key_id": key and key.reveal(),
        "aws_secret_access_key": secret and secret.reveal(),
        "config": AioConfig(
            connect_timeout=settings.timeout.seconds,
            read_timeout=settings.timeout.seconds,
            max_pool_connections=BATCHES,
            retries={"total_max_attempts": 1},  # the relay tries again by itself, and says so
        ),
    }


def _fit(text: str) -> str:
    """Hash what SQS takes as no id: others than 128 letters, digits and punctuation marks."""
    return text if _ID.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def _code(text: str) -> str:
    return re.split(r"[.#]", text)[-1].removesuffix("Exception")


def _entry_failure(failed: Mapping[str, Any]) -> SinkError:
    code = _code(str(failed.get("Code", "")))
    if code in MISCONFIGURED:
        return Misconfigured(f"{code}: {MISCONFIGURED[code]}")
    if failed.get("SenderFault") and not _is_throttling(code):
        return Refused("SQS does not take the message", answer=code)
    return Temporary("SQS could not take the message now", answer=code)


def _is_throttling(code: str) -> bool:
    return "Throttl" in code or code in ("OverLimit", "SlowDown", "RequestLimitExceeded")


def _failure(error: Exception) -> Exception:
    match error:
        case ClientError(response=response):
            return _client_failure(response)
        case SSLError():
            return Misconfigured("the TLS certificate does not verify, or TLS fails")
        case ConnectTimeoutError() | ReadTimeoutError() | TimeoutError():
            return Temporary("no answer in time")
        case EndpointConnectionError() | HTTPClientError() | OSError():
            return Temporary("could not connect, or the connection was lost")
        case BotoCoreError():
            return _library_failure(error)
    return error  # a bug, and not for us to hide


def _library_failure(error: BotoCoreError) -> SinkError:
    name = type(error).__name__
    if "Credential" in name or "Region" in name or "Profile" in name or "Token" in name:
        return Misconfigured(f"{name}: look at the AWS credentials and the region")
    return Temporary(f"{name}: no answer that can be understood")


def _client_failure(response: Mapping[str, Any]) -> SinkError:
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = _code(str(response.get("Error", {}).get("Code", "")))
    if code in MISCONFIGURED:
        return Misconfigured(f"{code}: {MISCONFIGURED[code]}", status=status)
    if code in REFUSED:
        return Refused("SQS does not take the message", status=status, answer=code)
    if status in (401, 403, 404) and not _is_throttling(code):
        return Misconfigured(f"SQS answers {status}", status=status)
    return Temporary(f"SQS answers {status}", status=status)
