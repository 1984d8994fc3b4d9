"""One NATS connection that ends as a whole and at once, and why it could not be made.

brokers.md, section 5; the library reconnects by itself, and sends what was given up meanwhile.
"""

import asyncio
import re
import ssl
from base64 import b64encode
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any, cast
from urllib.parse import urlsplit

import nkeys
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from relay import connecting, tls
from relay.errors import Misconfigured, SinkError, Temporary
from relay.settings import read_text

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
            self._verdict = Misconfigured(
                "the user may not subscribe to _INBOX.>, where answers come"
            )
            await self.close()
        elif "permissions violation for publish" in text:
            subject = text.partition('"')[2].rpartition('"')[0]
            self._end(Misconfigured("the user may not publish to this subject"), to=subject)

    def _fate(self) -> SinkError:
        failure = self._verdict or _failure(self.last_error or OSError())
        return failure if isinstance(failure, Misconfigured) else Temporary(LOST)

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


def credentials(path: str) -> dict[str, Any]:
    """Read a user's JWT and NKEY seed, as options of `open`; raises ValueError, without them."""
    text = read_text(path)
    jwt = re.search(r"BEGIN NATS USER JWT-+\s+(\S+)\s", text)
    seed = re.search(r"BEGIN USER NKEY SEED-+\s+(\w+)\s", text)
    if jwt is None or seed is None:
        raise ValueError("holds no user JWT with an NKEY seed")
    try:
        pair = nkeys.from_seed(bytearray(seed[1], "ascii"))
    except Exception:  # noqa: BLE001  it raises what comes, and that may hold the seed
        raise ValueError("holds no usable NKEY seed") from None
    return {
        "user_jwt_cb": jwt[1].encode,
        "signature_cb": lambda nonce: b64encode(pair.sign(nonce.encode())),
    }


def _failure(error: Exception) -> SinkError:
    unreached = connecting.failure(error, peer="server")
    if unreached is not None:
        return unreached
    said = str(error).lower() if isinstance(error, NatsError) else ""
    meanings = (meaning for text, meaning in REFUSALS.items() if text in said)
    kind, reason = next(meanings, (Temporary, "could not connect"))
    return kind(reason)
