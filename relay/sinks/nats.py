"""The `nats` sink: each event is one message that a JetStream stream has confirmed.

brokers.md, section 5; within the stream's window its Nats-Msg-Id makes a second one harmless.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from relay import cloudevents, jetstream, message, tls
from relay.clock import Clock
from relay.delivery import Answer
from relay.errors import Misconfigured, Refused, SinkError
from relay.event import Event
from relay.faults import Faults
from relay.nats_connection import Connection, Server, credentials
from relay.settings import Secret
from relay.sink import SinkSettings

SUBJECT_MAX_BYTES = 1024
"""Far below the server's max_control_line, which ends the connection."""

_STREAMS_OF = "$JS.API.STREAM.NAMES"
_NO_TOKEN = re.compile(r"[\s*>\x00-\x1f\x7f]")


class Settings(SinkSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type nats."""

    servers: Secret
    """`nats://` or `tls://` addresses, with commas; each may carry a token or user:password."""
    subject: str = "relay.{{ event }}"
    stream: str | None = None
    """Refuses to publish where another stream takes the subject."""
    credentials_file: str | None = None
    """A user's JWT and NKEY seed; read at every connection."""
    format: message.Format = "raw"
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    concurrency: int = 32


class NatsSink:
    """Publishes over one connection, made when it is needed."""

    def __init__(
        self,
        settings: Settings,
        *,
        servers: tuple[Server, ...],
        subject: message.Target,
        context: ssl.SSLContext,
    ) -> None:
        self._settings = settings
        self._servers = servers
        self._subject = subject
        self._context = context
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None

    async def send(self, event: Event) -> Answer:
        subject = _tokens(self._subject.resolve(event))
        if len(subject.encode()) > SUBJECT_MAX_BYTES:
            raise Refused(f"the subject is longer than {SUBJECT_MAX_BYTES} bytes")
        headers = self._headers(event)
        connection = await self._connected()
        size = _size(headers) + len(event.body)
        if size > connection.max_payload:
            raise Refused(f"{size} bytes are more than the server's max_payload")
        answer = await connection.ask(subject, event.body, headers)
        if jetstream.is_unheard(answer):
            raise Misconfigured(f"no stream takes the subject {self._subject.source}", status=503)
        jetstream.read(answer)
        return Answer(excerpt=jetstream.excerpt(answer))

    async def check(self) -> None:
        connection = await self._connected()
        for subject in self._subject.samples(self._settings):
            try:
                answer = await connection.ask(_STREAMS_OF, orjson.dumps({"subject": subject}))
            except Misconfigured:
                if connection.is_connected:  # a user who may publish need not be allowed to ask
                    return
                raise
            if jetstream.is_unheard(answer):
                raise Misconfigured("JetStream is not enabled on this server", status=503)
            self._find_stream(jetstream.read(answer).get("streams") or [], subject)

    def render(self, event: Event) -> dict[str, Any]:
        return {
            "subject": _tokens(self._subject.render(event)),
            "headers": self._headers(event),
            "body": event.body.decode(errors="replace"),
        }

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is None or not self._connection.is_connected:
                await self.close()
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> Connection:
        failures: list[SinkError] = []
        options = self._options()
        for server in self._servers:
            connection = Connection(server)
            try:
                await connection.open(self._context, **options)
            except SinkError as error:
                failures.append(error)
            except BaseException:
                await connection.close()
                raise
            else:
                return connection
            await connection.close()
        # One that someone has to mend says more than others that are away.
        raise next((each for each in failures if isinstance(each, Misconfigured)), failures[0])

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "connect_timeout": self._settings.timeout.seconds / len(self._servers)
        }
        if self._settings.credentials_file is not None:
            try:
                options |= credentials(self._settings.credentials_file)
            except ValueError as error:
                raise Misconfigured(f"credentials_file: {error}") from None
        return options

    def _headers(self, event: Event) -> dict[str, str]:
        named = message.headers(event, self._settings.format, prefix="ce-")
        headers = {name: cloudevents.header_value(value) for name, value in named.items()}
        # An id is unique in its source only, and another sink may write to the same stream.
        id_ = f"{headers['relay-id']}:{headers['relay-source']}:{self._settings.name}"
        headers["Nats-Msg-Id"] = id_
        if self._settings.format == "cloudevents":
            headers["ce-datacontenttype"] = "application/json"
        if self._settings.stream is not None:
            headers["Nats-Expected-Stream"] = self._settings.stream
        return headers

    def _find_stream(self, streams: list[str], subject: str) -> None:
        wanted = self._settings.stream
        if not streams:
            raise Misconfigured(f"no stream takes the subject {subject}")
        if wanted is not None and wanted not in streams:
            raise Misconfigured(f"the subject {subject} belongs to the stream {streams[0]}")


def build(settings: Settings, clock: Clock) -> NatsSink:  # noqa: ARG001
    faults = Faults()
    with faults.noted():
        subject = _subject(settings)
    with faults.noted():
        texts = [text.strip() for text in settings.servers.reveal().split(",")]
        servers = tuple(_server(text, secure=tls.is_asked_for(settings)) for text in texts)
    with faults.noted():
        _check_credentials(settings.credentials_file)
    with faults.noted():
        context = tls.context(settings)
    faults.tell()
    return NatsSink(settings, servers=servers, subject=subject, context=context)


def _subject(settings: Settings) -> message.Target:
    subject = message.Target(settings.subject, key="subject", escape=_token)
    for sample in subject.samples(settings):
        if sample != _tokens(sample) or _NO_TOKEN.search(sample):
            raise ValueError("subject: expected words with dots between, without blanks, * and >")
    return subject


def _check_credentials(path: str | None) -> None:
    if path is None:
        return
    try:
        credentials(path)
    except ValueError as error:
        raise ValueError(f"credentials_file: {error}") from None


def _server(text: str, *, secure: bool) -> Server:
    try:
        url = urlsplit(text if "://" in text else f"nats://{text}")
        host, port = url.hostname, url.port
    except ValueError:
        host = None
    if not host or url.scheme not in ("nats", "tls") or url.path.strip("/") or url.query:
        raise ValueError("servers: expected nats:// or tls:// addresses with commas between them")
    names = ("user", "password") if url.password is not None else ("token",)
    values = (unquote(each) for each in (url.username, url.password) if each is not None)
    address = f"[{host}]" if ":" in host else host
    return Server(
        f"{url.scheme}://{address}:{port or 4222}",
        tls=secure or url.scheme == "tls",
        login=dict(zip(names, values, strict=False)),
    )


def _token(value: str) -> str:
    return _NO_TOKEN.sub("_", value)


def _tokens(subject: str) -> str:
    """Fill tokens that are empty, which a subject may not have."""
    return ".".join(token or "_" for token in subject.split("."))


def _size(headers: Mapping[str, str]) -> int:
    lines = sum(len(name) + len(value) + len(": \r\n") for name, value in headers.items())
    return len("NATS/1.0\r\n\r\n") + lines
