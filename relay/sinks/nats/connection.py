"""One NATS connection, which can be cut at once, and the meanings of its failures.

brokers.md, section 5. Requests are the library's publish calls with a reply subject: its own
`request` waits for its timeout if the connection is lost or the server forbids the subject.
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlparse

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from relay.core.delivery import SinkResponse
from relay.core.errors import Meaning, Misconfigured, Refused, SinkError, Temporary
from relay.outbound import tls
from relay.sinks.nats.credentials import NatsServer
from relay.sinks.nats.stream import BoundedStream, not_nats

LOST = "the connection was lost"

REFUSALS: Mapping[str, Meaning] = {
    "authorization": (
        Misconfigured,
        "wrong user, password, token or credentials, or credentials that have ended",
    ),
    "authentication expired": (Misconfigured, "the credentials have expired"),
    "authentication revoked": (Misconfigured, "the credentials were revoked"),
    "connections exceeded": (Temporary, "the server takes no more connections of this account"),
    "authentication timeout": (Temporary, "the server was too slow to let us in"),
}
"""By the text of the server's last error before it ends a connection (nats-server, errors.go)."""

_VERDICT_S = 2.0
_LINE_MAX_BYTES = 65_536


class Request(msgspec.Struct, eq=False):
    """One message and the reply to it."""

    subject: str
    """Valid for the server: the connection does not check it."""
    body: bytes
    headers: dict[str, str] | None = None
    number: int = 0
    """Position among all requests of the connection."""
    reply: Msg | SinkError | None = None
    """None until it arrives; an error once it no longer can."""
    outcome: SinkResponse | SinkError | None = None
    """The meaning of the reply, once it is classified."""
    settled: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    """Made on any thread: it belongs to no event loop until one waits for it."""

    def settle(self, reply: Msg | SinkError) -> None:
        self.reply = reply
        self.settled.set()


class NatsConnection:
    """A client that never reconnects: the library would then send messages that were given up."""

    def __init__(self, server: NatsServer, context: ssl.SSLContext) -> None:
        self._server = server
        self._context = context
        self._stream = BoundedStream(needs_tls=server.tls)
        self._client = Client()
        # The library has no parameter for it, and its own closes only once all is sent.
        self._client._transport = self._stream  # noqa: SLF001
        self._inbox = ""
        self._waiting: dict[str, Request] = {}
        self._sent = 0
        """The number of the last request."""
        self._answered = 0
        """The highest number of those that have a reply."""
        self.is_leaving = False
        """The server is in lame duck mode: it serves on for a while, and accepts no new client."""
        self._error: Exception | None = None
        self._verdict: SinkError | None = None

    async def open(self, **options: Any) -> None:
        """Raises SinkError."""
        try:
            await self._client.connect(
                self._server.url,
                name="relay",
                tls=self._context,
                error_cb=self._on_error,
                closed_cb=self._on_closed,
                lame_duck_mode_cb=self._on_lame_duck,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                ping_interval=30,
                pending_size=0,
                skip_subject_validation=True,
                **self._server.login,
                **options,
            )
            self._inbox = self._client.new_inbox()
            await self._client.subscribe(f"{self._inbox}.*", cb=self._on_reply)
        except (NatsError, OSError) as error:
            failure = _failure(self._error or error)
        except ValueError:  # the library expects the text of an error in a certain form
            failure = not_nats()
        else:
            if self.is_open:
                return
            failure = self._loss()
        if self._stream.is_secured and not isinstance(failure, Misconfigured):
            failure = await self._certificate_verdict() or failure
        raise failure

    @property
    def is_usable(self) -> bool:
        return self.is_open and not self.is_leaving

    @property
    def is_open(self) -> bool:
        return self._client.is_connected and not self._stream.is_closing

    async def request(self, subject: str, body: bytes) -> Msg:
        """Return the reply; raises SinkError once none can arrive."""
        request = Request(subject, body)
        await self.exchange([request])
        if isinstance(request.reply, Msg):
            return request.reply
        raise request.reply or self._loss()

    async def exchange(self, requests: Sequence[Request]) -> None:
        """Send all of them, and wait until each has a reply or an error."""
        try:
            # Publishing never blocks: the library collects messages until the event loop runs.
            for request in requests:
                await self._publish(request)
            for request in requests:
                await request.settled.wait()
        except NatsError:
            loss = self._loss()
            for request in requests:
                request.reply = request.reply or loss
        except asyncio.CancelledError:
            if self._forget(requests) > self._answered:
                # A frozen server would accept the rest later, after it was given up.
                await self.close()
            raise
        finally:
            self._forget(requests)

    def _forget(self, requests: Sequence[Request]) -> int:
        """Stop waiting for them; return the highest number without a reply, or 0."""
        numbers = [request.number for request in requests if request.reply is None]
        for number in numbers:
            self._waiting.pop(str(number), None)
        return max(numbers, default=0)

    async def _publish(self, request: Request) -> None:
        size = _size(request)
        if size > self._client.max_payload:
            request.settle(
                Refused(f"{size} bytes are more than the server's max_payload", unsent=True)
            )
            return
        self._sent = request.number = self._sent + 1
        token = str(request.number)
        self._waiting[token] = request
        await self._client.publish(
            request.subject,
            request.body,
            reply=f"{self._inbox}.{token}",
            headers=request.headers,
        )

    async def _on_reply(self, message: Msg) -> None:
        request = self._waiting.pop(message.subject.rpartition(".")[2], None)
        if request is not None:
            self._answered = max(self._answered, request.number)
            request.settle(message)

    async def _on_error(self, error: Exception) -> None:
        self._error = error
        text = str(error)  # the library lowers its case
        if "permissions violation for subscription" in text:
            self._verdict = Misconfigured(
                "the user may not subscribe to _INBOX.>, where replies arrive"
            )
            await self.close()
        elif "permissions violation for publish" in text:
            subject = text.partition('"')[2].rpartition('"')[0]
            reason = "the user may not publish to this subject"
            self._settle_all(Misconfigured(reason, about_event=True), subject=subject)

    async def _on_lame_duck(self) -> None:
        self.is_leaving = True

    async def _on_closed(self) -> None:
        self._settle_all(self._loss())

    def _settle_all(self, failure: SinkError, *, subject: str | None = None) -> None:
        for token, request in list(self._waiting.items()):
            if subject in (None, request.subject.lower()):
                del self._waiting[token]
                request.settle(failure)

    def _loss(self) -> SinkError:
        """Explain why the connection has ended."""
        failure = self._verdict or _failure(self._client.last_error or OSError())
        return failure if isinstance(failure, Misconfigured) else Temporary(LOST)

    async def _certificate_verdict(self) -> SinkError | None:
        """Connect once more, to read the server's verdict on our certificate."""
        stream, url = BoundedStream(needs_tls=True), urlparse(self._server.url)
        try:
            await stream.connect(url, _LINE_MAX_BYTES, _VERDICT_S)
            await stream.readline()  # its INFO comes before TLS begins
            await stream.connect_tls(url, self._context, _LINE_MAX_BYTES, _VERDICT_S)
            return await tls.verdict(stream.reader, peer="server")
        except OSError as error:
            return tls.failure(error, peer="server")
        finally:
            stream.close()

    async def close(self) -> None:
        """Cut the connection, and fail everything that waits on it."""
        self._stream.close()
        await self._client.close()
        await asyncio.sleep(0)  # the library's tasks that were cancelled end


def _failure(error: Exception) -> SinkError:
    unreached = tls.connect_failure(error, peer="server")
    if unreached is not None:
        return unreached
    text = str(error).lower() if isinstance(error, NatsError) else ""
    meanings = (meaning for refusal, meaning in REFUSALS.items() if refusal in text)
    kind, reason = next(meanings, (Temporary, "could not connect"))
    return kind(reason)


def _size(request: Request) -> int:
    """Size of a message as the server counts it: everything behind the control line."""
    headers = request.headers or {}
    text = len("".join(headers)) + len("".join(headers.values()))  # in ASCII
    lines = text + len(headers) * len(": \r\n")
    return len("NATS/1.0\r\n\r\n") + lines + len(request.body)
