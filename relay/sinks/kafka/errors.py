"""What Kafka's failures mean to an operator.

brokers.md, section 7.
"""

from collections.abc import Mapping

from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.outbound import connect_errors

MEANINGS: Mapping[str, tuple[type[SinkError], str]] = {
    "UnknownTopicOrPartitionError": (Misconfigured, "the topic does not exist"),
    "InvalidTopicError": (Misconfigured, "the topic's name is not allowed"),
    "TopicAuthorizationFailedError": (Misconfigured, "the user may not write to the topic"),
    "ClusterAuthorizationFailedError": (Misconfigured, "the user may not write idempotently"),
    "SaslAuthenticationFailed": (Misconfigured, "wrong username or password"),
    "UnsupportedSaslMechanismError": (Misconfigured, "the broker lacks this sasl_mechanism"),
    "IllegalSaslStateError": (Misconfigured, "the broker does not expect SASL here"),
    "UnsupportedVersionError": (Misconfigured, "the broker is too old"),
    "IncompatibleBrokerVersion": (Misconfigured, "the broker is too old"),
    "PolicyViolationError": (Misconfigured, "the broker's policy forbids this"),
    "MessageSizeTooLargeError": (Refused, "larger than the topic takes"),
    "RecordListTooLargeError": (Refused, "larger than the topic's segments"),
    "InvalidRecordError": (Refused, "the broker finds the record invalid"),
    "KafkaStorageError": (Temporary, "the broker cannot write to its disk"),
    "NotEnoughReplicasError": (Temporary, "fewer replicas are in sync than the topic demands"),
    "NotEnoughReplicasAfterAppendError": (Temporary, "too few replicas confirmed in time"),
    "NotLeaderForPartitionError": (Temporary, "the partition has no leader"),
    "LeaderNotAvailableError": (Temporary, "the partition has no leader"),
    "KafkaConnectionError": (Temporary, "the connection was lost"),
    "NodeNotReadyError": (Temporary, "a broker cannot be reached"),
    "RequestTimedOutError": (Temporary, "not confirmed in time"),
    "ProducerClosed": (Temporary, "the connection was lost"),
}
"""By the client's names of Kafka's errors; what is not here is taken for temporary."""

OF_TOPIC = frozenset(
    {
        "UnknownTopicOrPartitionError",
        "InvalidTopicError",
        "TopicAuthorizationFailedError",
        "PolicyViolationError",
        "KafkaStorageError",
        "NotEnoughReplicasError",
        "NotEnoughReplicasAfterAppendError",
        "NotLeaderForPartitionError",
        "LeaderNotAvailableError",
    }
)
"""Errors of one topic or partition, which the event chooses."""

UNNAMED: Mapping[int, str] = {87: "InvalidRecordError"}
"""Kafka's codes that the client does not know."""


def meaning(error: Exception | str) -> SinkError:
    """Say what an error means, or the name of one; its text may hold anything, and is not used."""
    if isinstance(error, Exception):
        unreached = connect_errors.failure(error, peer="broker")
        if unreached is not None:
            return unreached
    name = error if isinstance(error, str) else type(error).__name__
    kind, text = MEANINGS.get(name, (Temporary, f"Kafka failed with {name}"))
    return kind(text, about_event=name in OF_TOPIC)
