"""Publishing into streams, and what JetStream says of them.

brokers.md, section 5.
"""

import asyncio
from collections.abc import Sequence

import orjson
from nats.aio.msg import Msg

from relay.core import timeouts
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.sinks.nats import jetstream
from relay.sinks.nats.connection import NatsConnection, Request

_STREAMS_OF = "$JS.API.STREAM.NAMES"
_DETAILS_OF = "$JS.API.STREAM.INFO"

_ANSWER_S = 2.0
"""A cluster without a leader need not answer at all, where one that has it does in milliseconds."""

_NO_QUORUM = "JetStream does not answer: too few servers of the cluster may be up for a quorum"


class NatsPublisher(NatsConnection):
    """A connection that also asks why no stream has taken a message."""

    async def publish(self, requests: Sequence[Request]) -> None:
        """Send all of them, and wait until each has a reply or an error."""
        await self.exchange(requests)
        for subject in {request.subject for request in requests if _is_untaken(request)}:
            failure = await self._why_untaken(subject)
            for request in requests:
                if request.subject == subject and _is_untaken(request):
                    request.outcome = failure

    async def streams(self, subject: str) -> Sequence[str] | None:
        """Return the streams that take a subject; None where the user may not ask.

        Raises SinkError where JetStream cannot answer.
        """
        reply = await self._ask(_STREAMS_OF, {"subject": subject})
        return None if reply is None else jetstream.read(reply).streams or ()

    async def losses(self, stream: str) -> str | None:
        """Return how a stream loses unread messages; None if it keeps them or the user may not ask.

        Raises SinkError for a stream without a leader.
        """
        reply = await self._ask(f"{_DETAILS_OF}.{stream}", {})
        return None if reply is None else jetstream.losses(jetstream.read(reply))

    async def _why_untaken(self, subject: str) -> SinkError | None:
        """Explain why no stream has answered; None if none takes the subject, or if unknown.

        A stream without a leader does not listen to its subjects.
        """
        try:
            streams = await self.streams(subject)
        except SinkError as error:
            return error
        if not streams:
            return None
        reason = f"the stream {streams[0]} has no leader: too few servers that hold it are up"
        return Temporary(reason, status=503, about_event=True)

    async def _ask(self, subject: str, question: dict[str, str]) -> Msg | None:
        """Return the reply; None where the user, who may publish, may not ask this."""
        timeouts.restart()
        try:
            async with asyncio.timeout(_ANSWER_S):
                reply = await self.request(subject, orjson.dumps(question))
        except TimeoutError:
            failure: SinkError = Temporary(_NO_QUORUM)
        except Misconfigured:
            if not self.is_open:
                raise
            return None
        else:
            if not jetstream.has_no_responders(reply):
                return reply
            failure = Misconfigured("JetStream is not enabled on this server", status=503)
        raise failure


def _is_untaken(request: Request) -> bool:
    return isinstance(request.reply, Msg) and jetstream.has_no_responders(request.reply)
