"""The `nats` sink: each event is one message that a JetStream stream has confirmed.

brokers.md, section 5; within the stream's window its Nats-Msg-Id makes a second one harmless.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import orjson
from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from relay import cloudevents, message, tls
from relay.clock import Clock
from relay.delivery import Answer
from relay.errors import Misconfigured, Refused, SinkError, Temporary
from relay.event import Event
from relay.settings import Secret, read_text
from relay.sink import SinkSettings

MEANINGS: Mapping[int, tuple[type[SinkError], str]] = {
    10002: (Temporary, "the account's JetStream limits are reached"),
    10023: (Temporary, "the server has no resources left"),
    10028: (Temporary, "the server has no memory left for streams"),
    10039: (Misconfigured, "JetStream is not enabled for this account"),
    10047: (Temporary, "the server has no storage left"),
    10054: (Refused, "larger than the stream's max_msg_size"),
    10060: (Misconfigured, "the subject belongs to another stream than `stream` names"),
    10076: (Misconfigured, "JetStream is not enabled on this server"),
    10077: (Temporary, "the stream is full and discards what is new, or its storage fails"),
    10097: (Refused, "the headers are larger than JetStream takes"),
    10109: (Misconfigured, "the stream is sealed"),
}
"""JetStream's own codes (nats-server, errors.json); what is not here is taken for temporary."""

SUBJECT_MAX_BYTES = 1024
"""Far below the server's max_control_line, which ends the connection."""

_STREAMS_OF = "$JS.API.STREAM.NAMES"
_NO_TOKEN = re.compile(r"[\s*>\x00-\x1f\x7f]")
_LOST = "the connection was lost"
_EXCERPT_BYTES = 1024


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


@dataclass(frozen=True, slots=True)
class Server:
    """One address to try, its credentials apart."""

    url: str
    tls: bool
    login: Mapping[str, Any]


class Connection(Client):
    """The library's connection, made to end as a whole and at once; it never reconnects."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._inbox = ""
        self._tokens = count()
        self._waiting: dict[str, tuple[str, asyncio.Future[Msg | SinkError]]] = {}
        self._answers = 0
        self._trouble: Exception | None = None

    async def open(self, context: ssl.SSLContext, **options: Any) -> None:
        """Raises SinkError."""
        try:
            await self.connect(
                self._server.url,
                name="relay",
                tls=context,
                error_cb=self._complained,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                ping_interval=30,
                pending_size=0,
                **self._server.login,
                **options,
            )
            self._inbox = self.new_inbox()
            await self.subscribe(f"{self._inbox}.*", cb=self._answered)
        except (NatsError, OSError) as error:
            failure = _failure(self._trouble or error)
        else:
            return
        raise failure

    async def ask(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> Msg:
        """Raises SinkError where no answer can come any more."""
        answers = self._answers
        token, answer = str(next(self._tokens)), asyncio.get_running_loop().create_future()
        self._waiting[token] = subject, answer
        try:
            await self.publish(subject, body, reply=f"{self._inbox}.{token}", headers=headers)
            found = await answer
        except NatsError:
            found = self._fate()
        except asyncio.CancelledError:
            if self._answers == answers:
                # Nothing came all the while: a frozen server would take the rest later, unasked.
                await self.close()
            raise
        finally:
            del self._waiting[token]
        if isinstance(found, SinkError):
            raise found
        return cast("Msg", found)

    async def _answered(self, answer: Msg) -> None:
        self._answers += 1
        waiting = self._waiting.get(answer.subject.rpartition(".")[2])
        if waiting is not None and not waiting[1].done():
            waiting[1].set_result(answer)

    async def _complained(self, error: Exception) -> None:
        self._trouble = error
        text = str(error)  # in small letters, by the library
        if "permissions violation for subscription" in text:
            self._end(Misconfigured("the user may not subscribe to _INBOX.>, where answers come"))
            await self.close()
        elif "permissions violation for publish" in text:
            subject = text.partition('"')[2].rpartition('"')[0]
            self._end(Misconfigured("the user may not publish to this subject"), to=subject)

    def _fate(self) -> SinkError:
        failure = _failure(self.last_error or OSError())
        return failure if isinstance(failure, Misconfigured) else Temporary(_LOST)

    def _end(self, fate: SinkError, *, to: str | None = None) -> None:
        for subject, answer in self._waiting.values():
            if to in (None, subject.lower()) and not answer.done():
                answer.set_result(fate)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002
        """Insist on TLS where it is asked for: the library follows the server, or an impostor."""
        if self._server.tls and initial_connection and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise Misconfigured("the server offers no TLS")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002
        """End what waits, which the library forgets, and wait for no peer, as the library would."""
        self._pending, self._pending_data_size = [], 0
        transport, self._transport = self._transport, None
        writer = getattr(transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        self._end(self._fate())
        await super()._close(status, do_cbs)
        await asyncio.sleep(0)  # the tasks that were cancelled end, and the socket is closed


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
        if _is_unheard(answer):
            raise Misconfigured(f"no stream takes the subject {self._subject.source}", status=503)
        _document(answer)
        return Answer(excerpt=_excerpt(answer))

    async def check(self) -> None:
        connection = await self._connected()
        for subject in self._subject.samples(self._settings):
            try:
                answer = await connection.ask(_STREAMS_OF, orjson.dumps({"subject": subject}))
            except Misconfigured:
                if connection.is_connected:  # a user who may publish need not be allowed to ask
                    return
                raise
            if _is_unheard(answer):
                raise Misconfigured("JetStream is not enabled on this server", status=503)
            self._find_stream(_document(answer).get("streams") or [], subject)

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
        for server in self._servers:
            connection = Connection(server)
            try:
                await connection.open(self._context, **self._options())
                if connection.is_connected:
                    return connection
                failures.append(Temporary(_LOST))
            except SinkError as error:
                failures.append(error)
            except BaseException:
                await connection.close()
                raise
            await connection.close()
        # One that someone has to mend says more than others that are away.
        raise next((each for each in failures if isinstance(each, Misconfigured)), failures[0])

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "connect_timeout": self._settings.timeout.seconds / len(self._servers)
        }
        if self._settings.credentials_file is not None:
            try:
                options["user_credentials"] = _credentials(self._settings.credentials_file)
            except ValueError as error:
                raise Misconfigured(str(error)) from None
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
    subject = message.Target(settings.subject, key="subject", escape=_token)
    for sample in subject.samples(settings):
        if sample != _tokens(sample) or _NO_TOKEN.search(sample):
            raise ValueError("subject: expected words with dots between, without blanks, * and >")
    texts = [text.strip() for text in settings.servers.reveal().split(",")]
    servers = tuple(_server(text, secure=tls.is_asked_for(settings)) for text in texts)
    if settings.credentials_file is not None:
        try:
            _credentials(settings.credentials_file)
        except ValueError as error:
            raise ValueError(f"credentials_file: {error}") from None
    return NatsSink(settings, servers=servers, subject=subject, context=tls.context(settings))


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


def _credentials(path: str) -> RawCredentials:
    """Read a .creds file; checked here, because the library looks for a missing JWT for ever."""
    text = read_text(path)
    seed = re.search(r"BEGIN USER NKEY SEED-+\s+(\w+)\s", text)
    if seed is None or re.search(r"BEGIN NATS USER JWT-+\s+\S+\s", text) is None:
        raise ValueError("holds no user JWT with an NKEY seed")
    try:
        nkeys = import_module("nkeys")
    except ModuleNotFoundError:
        raise ValueError("needs nkeys: pip install 'relay[nats]'") from None
    try:
        nkeys.from_seed(bytearray(seed[1], "ascii"))
    except Exception:  # noqa: BLE001  it raises what comes, and that may hold the seed
        raise ValueError("holds no usable NKEY seed") from None
    return RawCredentials(text)


def _token(value: str) -> str:
    return _NO_TOKEN.sub("_", value)


def _tokens(subject: str) -> str:
    """Fill tokens that are empty, which a subject may not have."""
    return ".".join(token or "_" for token in subject.split("."))


def _size(headers: Mapping[str, str]) -> int:
    lines = sum(len(name) + len(value) + len(": \r\n") for name, value in headers.items())
    return len("NATS/1.0\r\n\r\n") + lines


def _is_unheard(answer: Msg) -> bool:
    return answer.headers is not None and answer.headers.get("Status") == "503"


def _document(answer: Msg) -> dict[str, Any]:
    """Decode JetStream's answer; raises what `MEANINGS` says of an error in it."""
    try:
        document = orjson.loads(answer.data)
        error = document.get("error")
    except (ValueError, AttributeError):
        raise Temporary("an answer that is not JetStream's") from None
    if error is None:
        return cast("dict[str, Any]", document)
    code, status = error.get("err_code"), error.get("code")
    kind, text = MEANINGS.get(code, (Temporary, "JetStream failed"))
    raise kind(f"{code}: {text}", status=status, answer=_excerpt(answer))


def _excerpt(answer: Msg) -> str:
    return answer.data[:_EXCERPT_BYTES].decode(errors="replace")


def _failure(error: Exception) -> SinkError:
    text = str(error).lower()
    of_tls = tls.failure(error, peer="server")
    if of_tls is not None:
        return of_tls
    match error:
        case socket.gaierror():
            return Temporary("name not found")
        case ConnectionRefusedError():
            return Temporary("connection refused")
        case TimeoutError():
            return Temporary("could not connect in time")
        case NatsError() if "authorization" in text or "authentication" in text:
            return Misconfigured("wrong user, password, token or credentials")
    return Temporary("could not connect")
