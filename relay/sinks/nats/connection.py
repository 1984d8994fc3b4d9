"""One NATS connection that ends as a whole and at once, and why it could not be made.

brokers.md, section 5; the library reconnects by itself, and sends what was given up meanwhile.
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.outbound import connect_errors, tls
from relay.sinks.nats.credentials import Server

LOST = "the connection was lost"

REFUSALS: Mapping[str, tuple[type[SinkError], str]] = {
    "authorization": (
        Misconfigured,
        "wrong user, password, token or credentials, or credentials that have ended",
    ),
    "authentication expired": (Misconfigured, "the credentials have expired"),
    "authentication revoked": (Misconfigured, "the credentials were revoked"),
    "connections exceeded": (Temporary, "the server takes no more connections of this account"),
    "authentication timeout": (Temporary, "the server was too slow to let us in"),
}
"""By what the server says (nats-server, errors.go) before it ends a connection."""


class Question(msgspec.Struct, eq=False):
    """One message that is answered, and the answer to it."""

    subject: str
    """As the server takes it: the connection checks nothing in it."""
    body: bytes
    headers: dict[str, str] | None = None
    number: int = 0
    """Its place among all that the connection asked."""
    found: Msg | SinkError | None = None
    """None where there is no answer yet, an error where none can come any more."""


class Round:
    """Questions that are waited for together."""

    __slots__ = ("ended", "unanswered")

    def __init__(self, count: int) -> None:
        self.unanswered = count
        self.ended = asyncio.get_running_loop().create_future()

    def settle(self, question: Question, found: Msg | SinkError) -> None:
        """Call it once for each."""
        question.found = found
        self.unanswered -= 1
        if not self.unanswered and not self.ended.done():
            self.ended.set_result(None)


class Connection(Client):
    """The library's connection, made to end as a whole and at once; it never reconnects."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._inbox = ""
        self._waiting: dict[str, tuple[Question, Round]] = {}
        self._asked = 0
        self._heard = 0
        """The number of the last question that was asked of all that have an answer."""
        self._trouble: Exception | None = None
        self._verdict: SinkError | None = None
        self._is_secured = False

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
                skip_subject_validation=True,
                **self._server.login,
                **options,
            )
            self._inbox = self.new_inbox()
            await self.subscribe(f"{self._inbox}.*", cb=self._answered)
        except (NatsError, OSError) as error:
            failure = _failure(self._trouble or error)
        else:
            if self.is_connected:
                return
            failure = self._fate()
        if self._is_secured and not isinstance(failure, Misconfigured):
            failure = await self._ask_again(context) or failure
        raise failure

    async def ask(self, subject: str, body: bytes) -> Msg:
        """Raises SinkError where no answer can come any more."""
        question = Question(subject, body)
        await self.ask_all([question])
        if isinstance(question.found, Msg):
            return question.found
        raise question.found or self._fate()

    async def ask_all(self, questions: Sequence[Question]) -> None:
        """Send all of them in one write, and wait until each has found something.

        Cancelled, it leaves those without an answer as they are.
        """
        if not questions:
            return
        waited = Round(len(questions))
        try:
            for question in questions:
                self._asked = question.number = self._asked + 1
                token = str(question.number)
                self._waiting[token] = question, waited
                # It waits for nothing: the library gathers what is sent until the loop turns.
                await self.publish(
                    question.subject,
                    question.body,
                    reply=f"{self._inbox}.{token}",
                    headers=question.headers,
                )
            await waited.ended
        except NatsError:
            fate = self._fate()
            for question in questions:
                question.found = question.found or fate
        except asyncio.CancelledError:
            if self._forget(questions) > self._heard:
                # Nothing came since it was asked: a frozen server would take the rest later,
                # unasked.
                await self.close()
            raise
        finally:
            self._forget(questions)

    def _forget(self, questions: Sequence[Question]) -> int:
        """Wait for them no more; return the last number that has no answer, or 0."""
        numbers = [question.number for question in questions if question.found is None]
        for number in numbers:
            self._waiting.pop(str(number), None)
        return max(numbers, default=0)

    async def _answered(self, answer: Msg) -> None:
        waiting = self._waiting.pop(answer.subject.rpartition(".")[2], None)
        if waiting is not None:
            question, waited = waiting
            self._heard = max(self._heard, question.number)
            waited.settle(question, answer)

    async def _complained(self, error: Exception) -> None:
        self._trouble = error
        text = str(error)  # in small letters, by the library
        if "permissions violation for subscription" in text:
            self._verdict = Misconfigured(
                "the user may not subscribe to _INBOX.>, where answers come"
            )
            await self.close()
        elif "permissions violation for publish" in text:
            subject = text.partition('"')[2].rpartition('"')[0]
            reason = "the user may not publish to this subject"
            self._end(Misconfigured(reason, about_event=True), to=subject)

    def _fate(self) -> SinkError:
        failure = self._verdict or _failure(self.last_error or OSError())
        return failure if isinstance(failure, Misconfigured) else Temporary(LOST)

    def _end(self, fate: SinkError, *, to: str | None = None) -> None:
        for token, (question, waited) in list(self._waiting.items()):
            if to in (None, question.subject.lower()):
                del self._waiting[token]
                waited.settle(question, fate)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002
        """Insist on TLS where it is asked for: the library follows the server, or an impostor."""
        if self._server.tls and initial_connection and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise Misconfigured("the server offers no TLS")
            info["tls_required"] = True
        self._is_secured = bool(info.get("tls_required"))
        await super()._process_info(info, initial_connection)

    async def _ask_again(self, context: ssl.SSLContext) -> SinkError | None:
        """Connect once more, to hear what the server says of our certificate."""
        url = urlsplit(self._server.url)
        try:
            reader, writer = await asyncio.open_connection(url.hostname, url.port)
            with closing(writer.transport):
                await reader.readline()  # it introduces itself before TLS begins
                await writer.start_tls(context, server_hostname=url.hostname)
                return await tls.verdict(reader, peer="server")
        except OSError as error:
            return tls.failure(error, peer="server")

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


def _failure(error: Exception) -> SinkError:
    unreached = connect_errors.failure(error, peer="server")
    if unreached is not None:
        return unreached
    said = str(error).lower() if isinstance(error, NatsError) else ""
    meanings = (meaning for text, meaning in REFUSALS.items() if text in said)
    kind, reason = next(meanings, (Temporary, "could not connect"))
    return kind(reason)
