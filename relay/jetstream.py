"""What JetStream's answers mean: what is confirmed, and what an error in one says of the event.

brokers.md, section 5.
"""

from collections.abc import Mapping
from typing import Any, cast

import orjson
from nats.aio.msg import Msg

from relay.delivery import Answer
from relay.errors import Misconfigured, Refused, SinkError, Temporary

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

_EXCERPT_BYTES = 1024


def outcome(answer: Msg, subject: str) -> Answer | SinkError:
    """What became of the message that it answers; `subject` is the setting, for an error."""
    if is_unheard(answer):
        return Misconfigured(f"no stream takes the subject {subject}", status=503)
    try:
        read(answer)
    except SinkError as error:
        return error
    return Answer(excerpt=excerpt(answer))


def is_unheard(answer: Msg) -> bool:
    """Whether nobody listens to the subject that was asked."""
    return answer.headers is not None and answer.headers.get("Status") == "503"


def read(answer: Msg) -> dict[str, Any]:
    """Decode the document that was answered; raises what `MEANINGS` says of an error in it."""
    try:
        document = orjson.loads(answer.data)
        error = document.get("error")
    except (ValueError, AttributeError):
        raise Temporary("an answer that is not JetStream's") from None
    if error is None:
        return cast("dict[str, Any]", document)
    code, status = error.get("err_code"), error.get("code")
    kind, text = MEANINGS.get(code, (Temporary, "JetStream failed"))
    raise kind(f"{code}: {text}", status=status, answer=excerpt(answer))


def excerpt(answer: Msg) -> str:
    """What is kept of it with the attempt."""
    return answer.data[:_EXCERPT_BYTES].decode(errors="replace")
