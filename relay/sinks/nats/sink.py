"""The `nats` sink: each event is one message that a JetStream stream has confirmed.

brokers.md, section 5; within the stream's window its Nats-Msg-Id makes a second one harmless.
"""

import re
import ssl
from collections.abc import Sequence
from typing import Any, ClassVar

from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, SinkError
from relay.core.event import Event
from relay.core.setting_errors import Faults
from relay.core.sink import BatchSettings
from relay.outbound import cloudevents, message, tls, watched
from relay.outbound.publishing import PublishingSink
from relay.sinks.nats import credentials, jetstream
from relay.sinks.nats.connection import Request
from relay.sinks.nats.credentials import NatsServer
from relay.sinks.nats.publisher import NatsPublisher

SUBJECT_MAX_BYTES = 1024
"""Far below the server's max_control_line, which ends the connection."""

_NO_TOKEN = re.compile(r"[\s*>\x00-\x1f\x7f]")

_SUBJECT = message.Naming(
    lambda subject: _NO_TOKEN.search(subject) is None,
    "words with dots between, without blanks, * and >",
    SUBJECT_MAX_BYTES,
    escape=lambda value: _NO_TOKEN.sub("_", value),
    reserved=(
        message.Reserved("$JS.", "JetStream's own commands"),
        message.Reserved("$SYS.", "the server's own messages"),
        message.Reserved("$O.", "object stores"),
        message.Reserved("$KV.", "key-value buckets", until="."),
        message.Reserved("$", "the server and its protocols"),
        message.Reserved("_INBOX", "replies"),
        message.Reserved("_R_", "replies of services in other accounts"),
        message.Reserved("_GR_", "replies across gateways"),
    ),
)
"""`$KV.bucket.` may be written out: to put a value into a bucket is to publish to its stream."""


class Settings(BatchSettings, tls.TlsSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type nats."""

    destination: ClassVar[str | None] = "subject"
    servers: Secret
    """`nats://` or `tls://` addresses, with commas; each may carry a token or user:password."""
    subject: str = "relay.{{ event }}"
    stream: str | None = None
    """Refuses to publish where another stream takes the subject."""
    credentials_file: str | None = None
    """A user's JWT and NKEY seed; read at every connection."""
    format: message.Format = "raw"
    concurrency: int = 64


class NatsSink(PublishingSink[Request, NatsPublisher]):
    """Publishes over one connection."""

    def __init__(
        self,
        settings: Settings,
        *,
        servers: tuple[NatsServer, ...],
        subject: message.DestinationTemplate,
        context: ssl.SSLContext,
    ) -> None:
        super().__init__(settings)
        self._settings = settings
        self._servers = servers
        self._subject = subject
        self._context = context
        self._fixed_headers = _fixed_headers(settings)

    def render(self, event: Event) -> dict[str, Any]:
        return {
            "subject": _filled(self._subject.render(event)),
            "headers": self._headers(event),
            "body": event.body.decode(errors="replace"),
        }

    def _message(self, event: Event) -> Request:
        return Request(_filled(self._subject.resolve(event)), event.body, self._headers(event))

    def _outcome(self, message: Request) -> SinkResponse | Exception | None:
        reply, stream = message.reply, self._settings.stream
        if reply is None or isinstance(reply, Exception):
            return reply
        if message.outcome is None:
            message.outcome = jetstream.outcome(reply, self._subject.source, stream=stream)
        return message.outcome

    async def _examine(self, publisher: NatsPublisher) -> str | None:
        names: set[str] = set()
        for subject in self._subject.samples(self._settings):
            streams = await publisher.streams(subject)
            if streams is None:  # a user who may publish need not be allowed to ask
                return "whether a stream takes the subject was not asked: no right to ask"
            names.add(self._stream_of(streams, subject))
        losses = [await publisher.losses(name) for name in sorted(names)]
        warnings = "".join(f"; warning: {loss}" for loss in losses if loss)
        asked = "a stream takes the subject; NATS cannot be asked for the right to publish"
        return asked + warnings

    async def _connect(self, replaced: NatsPublisher | None) -> NatsPublisher:
        failures: list[SinkError] = []
        options = self._options()
        for server in self._servers:
            connection = NatsPublisher(server, self._context)
            try:
                await connection.open(**options)
            except SinkError as error:
                failures.append(error)
            except BaseException:
                await connection.close()
                raise
            else:
                return connection
            await connection.close()
        if replaced is not None and replaced.is_open:
            return replaced  # a server in lame duck mode, which serves until it ends
        # A server that someone has to mend says more than others that are away.
        raise next((error for error in failures if isinstance(error, Misconfigured)), failures[0])

    def _options(self) -> dict[str, Any]:
        options = {"connect_timeout": self._settings.timeout.seconds / len(self._servers)}
        try:
            return options | credentials.credentials(self._settings.credentials_file)
        except ValueError as error:
            raise Misconfigured(str(error)) from None

    def _headers(self, event: Event) -> dict[str, str]:
        form = self._settings.format
        headers = message.identity(event, form, prefix="ce-")
        together = "".join(headers.values())
        if cloudevents.header_value(together) != together:  # one check is cheaper than many
            headers = {name: cloudevents.header_value(value) for name, value in headers.items()}
        # An id is unique in its source only, and another sink may write to the same stream.
        id_ = f"{headers['relay-id']}:{headers['relay-source']}:{self._settings.name}"
        headers["Nats-Msg-Id"] = id_
        for name, value in watched.headers(event, form, prefix="ce-").items():
            # JSON in ASCII is a header value as it is; the binding wants it encoded.
            headers[name] = value if form == "raw" else cloudevents.header_value(value)
        headers.update(self._fixed_headers)
        return headers

    def _stream_of(self, streams: Sequence[str], subject: str) -> str:
        wanted = self._settings.stream
        if not streams:
            raise Misconfigured(f"no stream takes the subject {subject}")
        if wanted is not None and wanted not in streams:
            raise Misconfigured(f"the subject {subject} belongs to the stream {streams[0]}")
        return wanted or streams[0]


def build(settings: Settings, clock: Clock) -> NatsSink:  # noqa: ARG001
    faults = Faults()
    with faults.collect():
        subject = _subject(settings)
    with faults.collect():
        secure = tls.is_asked_for(settings)
        servers = credentials.servers(settings.servers.reveal(), secure=secure)
    with faults.collect():
        credentials.credentials(settings.credentials_file)
    with faults.collect():
        context = tls.context(settings)
    faults.raise_all()
    return NatsSink(settings, servers=servers, subject=subject, context=context)


def _subject(settings: Settings) -> message.DestinationTemplate:
    subject = message.DestinationTemplate(settings.subject, key="subject", naming=_SUBJECT)
    if any(sample != _filled(sample) for sample in subject.samples(settings)):
        raise ValueError(f"subject: does not fit: expected {_SUBJECT.expected}")
    return subject


def _filled(subject: str) -> str:
    """Fill tokens that are empty, which a subject may not have."""
    return ".".join(token or "_" for token in subject.split("."))


def _fixed_headers(settings: Settings) -> dict[str, str]:
    """The headers that are the same for every event."""
    headers = {}
    if settings.format == "cloudevents":
        headers["ce-datacontenttype"] = "application/json"
    if settings.stream is not None:
        headers["Nats-Expected-Stream"] = settings.stream
    return headers
