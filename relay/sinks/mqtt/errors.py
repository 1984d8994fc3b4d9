"""MQTT 5 reason codes and connection failures as errors for operators.

brokers.md, section 10; a CONNACK refuses a client, so that no event is ever `Refused` by one.
"""

from collections.abc import Mapping

from relay.core.errors import Meaning, Misconfigured, Refused, SinkError, Temporary

NO_SUBSCRIBER = 0x10
"""PUBACK's "no matching subscribers": the broker took the message and dropped it."""

SUCCESS = frozenset({0x00, NO_SUBSCRIBER})
"""Reason codes with which a PUBACK confirms (MQTT 5.0, section 3.4.2.1)."""

PROTOCOL_ERROR = 0x82
NOT_AUTHORIZED = 0x87
TOO_LARGE = 0x95
NO_QOS = 0x9B
MOVED = 0x9D

MEANINGS: Mapping[int, Meaning] = {
    0x84: (Misconfigured, "the broker does not speak MQTT 5"),
    0x85: (Misconfigured, "the broker does not accept this client_id"),
    0x86: (Misconfigured, "wrong username or password"),
    NOT_AUTHORIZED: (Misconfigured, "the user may not publish to this topic"),
    0x88: (Temporary, "the broker is not available"),
    0x89: (Temporary, "the broker is busy"),
    0x8A: (Misconfigured, "the broker has banned this client"),
    0x8B: (Temporary, "the broker is shutting down"),
    0x8C: (Misconfigured, "the broker asks for another kind of login"),
    0x8E: (Misconfigured, "another client with this client_id took the connection over"),
    0x90: (Misconfigured, "the broker does not accept this topic"),
    0x93: (Temporary, "too many unconfirmed messages (receive maximum exceeded)"),
    TOO_LARGE: (Refused, "larger than the broker takes"),
    0x96: (Temporary, "message rate too high"),
    0x97: (Temporary, "a quota of the broker is used up"),
    0x98: (Temporary, "an administrator ended the connection"),
    0x99: (Refused, "the broker rejects the payload format"),
    NO_QOS: (Misconfigured, "the broker does not support QoS 1, so it would never confirm"),
    0x9C: (Temporary, "the broker sends clients to another server for now"),
    MOVED: (Temporary, "the broker has moved"),
    0x9F: (Temporary, "connection rate exceeded"),
}
"""Reason codes of MQTT 5.0, section 2.4; any other is temporary."""

OF_MESSAGE = frozenset({NOT_AUTHORIZED, 0x90, TOO_LARGE, 0x99})
"""Reason codes that blame one message, also in a DISCONNECT."""


def classify(code: int, *, about_event: bool = False) -> SinkError:
    kind, text = MEANINGS.get(code, (Temporary, f"the broker failed with reason code {code:#04x}"))
    return kind(text, status=code, about_event=about_event)


def login_refused(code: int) -> SinkError:
    """Return the error of a CONNACK, which is never about an event."""
    error = classify(code)
    # A DISCONNECT may say so while `url` leads to the new place already; here it does not.
    is_temporary = isinstance(error, Temporary) and code != MOVED
    kind = Temporary if is_temporary else Misconfigured
    is_of_user = code == NOT_AUTHORIZED
    text = "wrong username or password, or no right to connect" if is_of_user else error.reason
    return kind(text, status=code)
