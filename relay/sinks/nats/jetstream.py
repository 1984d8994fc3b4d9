"""Meanings of JetStream's replies: the confirmation of an event, an error, or a stream's config.

brokers.md, section 5.
"""

from collections.abc import Mapping

import msgspec
from nats.aio.msg import Msg

from relay.core.delivery import SinkResponse
from relay.core.errors import Meaning, Misconfigured, Refused, SinkError, Temporary

MEANINGS: Mapping[int, Meaning] = {
    10002: (Temporary, "the account's JetStream limits are reached"),
    10008: (Temporary, "JetStream is not available at the moment"),
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
"""JetStream's own codes (nats-server, errors.json); any other is temporary."""

OF_SERVER = frozenset({10008, 10076})
"""Codes by which a server says that it has no JetStream, whatever the event; another may have."""

_LIMITS = ("max_msgs", "max_bytes", "max_msgs_per_subject")

_EXCERPT_BYTES = 1024


class JetStreamError(msgspec.Struct):
    """The `error` of a reply."""

    code: int = 0
    """An HTTP status."""
    err_code: int = 0


class StreamConfig(msgspec.Struct):
    """The `config` of a stream."""

    name: str = ""
    discard: str = ""
    max_msgs: int = -1
    max_bytes: int = -1
    max_msgs_per_subject: int = -1


class JetStreamReply(msgspec.Struct):
    """The fields of JetStream's replies that are read here."""

    stream: str = ""
    seq: int = 0
    streams: tuple[str, ...] | None = None
    config: StreamConfig | None = None
    error: JetStreamError | None = None


_decode = msgspec.json.Decoder(JetStreamReply).decode


def outcome(reply: Msg, subject: str, *, stream: str | None) -> SinkResponse | SinkError:
    """Return the outcome of a message by its reply: only a PubAck confirms it.

    `subject` is the setting, for an error; `stream` is the one that has to confirm, None for any.
    Every subscriber of the subject can reply, and sooner than the stream.
    """
    if has_no_responders(reply):
        reason = f"no stream takes the subject {subject}"
        return Misconfigured(reason, status=503, about_event=True)
    try:
        ack = read(reply)
    except SinkError as error:
        return error
    if not ack.stream or ack.seq < 1:
        return _not_jetstream(reply)
    if stream is not None and ack.stream != stream:
        reason = "another stream than `stream` names has answered"
        return Misconfigured(reason, answer=excerpt(reply), about_event=True)
    return SinkResponse(excerpt=excerpt(reply))


def has_no_responders(reply: Msg) -> bool:
    """Whether the subject has no subscriber and no stream."""
    return reply.headers is not None and reply.headers.get("Status") == "503"


def read(reply: Msg) -> JetStreamReply:
    """Decode a reply; raises the error in it as `MEANINGS` has it."""
    try:
        document = _decode(reply.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _not_jetstream(reply) from None
    if document.error is None:
        return document
    code, status = document.error.err_code, document.error.code
    kind, text = MEANINGS.get(code, (Temporary, "JetStream failed"))
    raise kind(
        f"{code}: {text}",
        status=status,
        answer=excerpt(reply),
        about_event=code not in OF_SERVER,
    )


def losses(details: JetStreamReply) -> str | None:
    """Return how a stream loses unread messages; None where it keeps them."""
    stream = details.config
    if stream is None or stream.discard != "old":
        return None
    limits = {name: getattr(stream, name) for name in _LIMITS}
    named = [f"{name} {limit}" for name, limit in limits.items() if limit > 0]
    if not named:
        return None
    return (
        f"at its limit ({', '.join(named)}) the stream {stream.name} drops the oldest messages, "
        "unread ones too: set its discard policy to new"
    )


def excerpt(reply: Msg) -> str:
    """The part of a reply that is kept with the attempt."""
    return reply.data[:_EXCERPT_BYTES].decode(errors="replace")


def _not_jetstream(reply: Msg) -> Misconfigured:
    reason = "the answer is not JetStream's: stop the other subscriber that answers on the subject"
    return Misconfigured(reason, answer=excerpt(reply), about_event=True)
