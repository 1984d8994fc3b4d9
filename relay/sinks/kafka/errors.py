"""What Kafka's errors mean to an operator.

brokers.md, section 7.
"""

from collections.abc import Mapping

from confluent_kafka import KafkaError

from relay.core.errors import Meaning, Misconfigured, Refused, SinkError, Temporary

MEANINGS: Mapping[str, Meaning] = {
    "UNKNOWN_TOPIC_OR_PART": (Misconfigured, "the topic {topic} does not exist"),
    "_UNKNOWN_TOPIC": (Misconfigured, "the topic {topic} does not exist"),
    "TOPIC_EXCEPTION": (Misconfigured, "the name of the topic {topic} is not allowed"),
    "TOPIC_AUTHORIZATION_FAILED": (Misconfigured, "the user may not write to the topic {topic}"),
    "CLUSTER_AUTHORIZATION_FAILED": (Misconfigured, "the user may not write idempotently"),
    "POLICY_VIOLATION": (Misconfigured, "the broker's policy forbids this"),
    "_AUTHENTICATION": (Misconfigured, "wrong username or password"),
    "_INVALID_ARG": (Misconfigured, "the client rejects a setting, such as a TLS file"),
    "_UNSUPPORTED_FEATURE": (Misconfigured, "the broker is too old"),
    "UNSUPPORTED_VERSION": (Misconfigured, "the broker is too old"),
    "MSG_SIZE_TOO_LARGE": (Refused, "larger than the topic takes"),
    "RECORD_LIST_TOO_LARGE": (Refused, "larger than the topic's segments"),
    "INVALID_RECORD": (Refused, "the broker finds the record invalid"),
    "KAFKA_STORAGE_ERROR": (Temporary, "the broker cannot write to its disk"),
    "NOT_ENOUGH_REPLICAS": (Temporary, "fewer replicas are in sync than the topic demands"),
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": (Temporary, "too few replicas confirmed in time"),
    "NOT_LEADER_FOR_PARTITION": (Temporary, "the partition has no leader"),
    "LEADER_NOT_AVAILABLE": (Temporary, "the partition has no leader"),
    "_PURGE_INFLIGHT": (Temporary, "not confirmed in time"),
    "_TIMED_OUT": (Temporary, "not confirmed in time"),
    "REQUEST_TIMED_OUT": (Temporary, "not confirmed in time"),
    "_RESOLVE": (Temporary, "name not found"),
    "_TRANSPORT": (Temporary, "the connection was lost"),
    "_SSL": (Temporary, "TLS failed"),
}
"""By `KafkaError.name()`; all others are temporary."""

DETAILS: Mapping[str, tuple[tuple[str, Meaning], ...]] = {
    "_AUTHENTICATION": (
        ("Unsupported SASL mechanism", (Misconfigured, "the broker lacks this sasl_mechanism")),
        ("current SASL state", (Misconfigured, "the broker does not expect SASL here")),
    ),
    "_SSL": (
        ("verify failed", (Misconfigured, "the broker's TLS certificate does not verify")),
        ("alert", (Misconfigured, "the broker does not accept our TLS certificate")),
    ),
    "_TRANSPORT": (
        ("Connection refused", (Temporary, "connection refused")),
        ("SSL handshake", (Temporary, "TLS failed; check security_protocol")),
        ("security.protocol", (Temporary, "the connection was lost; check security_protocol")),
    ),
}
"""Meanings that only the client's text tells apart; the text itself may hold anything."""

OF_TOPIC = frozenset(
    {
        "UNKNOWN_TOPIC_OR_PART",
        "_UNKNOWN_TOPIC",
        "TOPIC_EXCEPTION",
        "TOPIC_AUTHORIZATION_FAILED",
        "POLICY_VIOLATION",
        "KAFKA_STORAGE_ERROR",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
    }
)
"""Errors of one topic or partition, which the event chooses."""


def classify(error: KafkaError, *, topic: str = "") -> SinkError:
    name, text = error.name(), error.str()
    kind, reason = MEANINGS.get(name, (Temporary, f"Kafka failed with {name}"))
    details = (meaning for part, meaning in DETAILS.get(name, ()) if part in text)
    kind, reason = next(details, (kind, reason))
    return kind(reason.format(topic=topic), about_event=name in OF_TOPIC)
