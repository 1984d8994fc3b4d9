"""What an MQTT broker's reason codes and its silence mean to an operator (pure).

brokers.md, section 10; a CONNACK refuses a client, so that no event is ever `Refused` by one.
"""

from collections.abc import Mapping

from zmqtt import MQTTConnectError, MQTTDisconnectedError, MQTTTimeoutError

from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.outbound import connect_errors, tls

UNHEARD = 0x10
"""PUBACK's "no matching subscribers": the broker took the message and dropped it."""

TAKEN = frozenset({0x00, UNHEARD})
"""The reason codes with which a PUBACK confirms (MQTT 5.0, section 3.4.2.1)."""

TOO_LARGE = 0x95
NOT_AUTHORIZED = 0x87
NO_QOS = 0x9B

MEANINGS: Mapping[int, tuple[type[SinkError], str]] = {
    0x01: (Misconfigured, "the broker does not speak MQTT 5"),
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
    0x93: (Temporary, "more was on its way than the broker takes at once"),
    TOO_LARGE: (Refused, "larger than the broker takes"),
    0x96: (Temporary, "the broker finds the rate too high"),
    0x97: (Temporary, "a quota of the broker is used up"),
    0x98: (Temporary, "an administrator ended the connection"),
    0x99: (Refused, "the broker finds that the body is not what it should be"),
    NO_QOS: (Misconfigured, "the broker takes no QoS 1, so that it would confirm nothing"),
    0x9C: (Misconfigured, "the broker sends its clients to another one"),
    0x9D: (Misconfigured, "the broker has moved"),
    0x9F: (Temporary, "the broker finds that clients connect too often"),
}
"""Reason codes of MQTT 5.0, section 2.4; what is not here is taken for temporary."""

OF_MESSAGE = frozenset({NOT_AUTHORIZED, 0x90, TOO_LARGE, 0x99})
"""Reason codes that blame one message, also where they end the connection."""

_LOGIN = "wrong username or password, or no right to connect"


def meaning(code: int, *, about_event: bool = False) -> SinkError:
    kind, text = MEANINGS.get(code, (Temporary, f"the broker failed with reason code {code:#04x}"))
    return kind(text, status=code, about_event=about_event)


def connect_failure(error: Exception) -> SinkError:
    cause = error.__cause__ if isinstance(error, MQTTDisconnectedError) else error
    of_tls = tls.failure(cause or error, peer="broker")
    if of_tls is not None:
        return of_tls
    match error:
        case MQTTConnectError(return_code=code):
            refusal = meaning(code)
            text = _LOGIN if code == NOT_AUTHORIZED else refusal.reason
            # It is not about an event, whatever it says.
            kind = Temporary if isinstance(refusal, Temporary) else Misconfigured
            return kind(text, status=code)
        case MQTTDisconnectedError():
            return Temporary("the broker ended the connection before it let us in")
        case MQTTTimeoutError():
            return Temporary("the broker did not answer in time")
    unreached = connect_errors.failure(error, peer="broker")
    return unreached or Temporary("what answers there is not MQTT 5")
