"""Meanings of SQS's responses and of its client's failures."""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ReadTimeoutError,
    SSLError,
)

from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.outbound import tls

MISCONFIGURED: Mapping[str, str] = {
    "AccessDenied": "the credentials may not do this on the queue",
    "ExpiredToken": "the credentials have expired",
    "InvalidAddress": "`queue_url` is no queue's",
    "InvalidClientTokenId": "the access key is unknown",
    "InvalidSecurity": "the request is not signed as the queue wants it",
    "KmsAccessDenied": "the credentials may not use the queue's key",
    "KmsDisabled": "the queue's key is disabled",
    "KmsInvalidKeyUsage": "the queue's key is not one for encryption",
    "KmsInvalidState": "the queue's key is in a state in which it cannot be used",
    "KmsNotFound": "the queue's key does not exist",
    "KmsOptInRequired": "the account is not signed up for the service of the queue's key",
    "MissingAuthenticationToken": "the queue asks for credentials",
    "NonExistentQueue": "the queue does not exist",
    "OptInRequired": "the account is not signed up for SQS",
    "QueueDoesNotExist": "the queue does not exist",
    "SignatureDoesNotMatch": "the secret key is wrong",
    "UnrecognizedClient": "the access key is unknown",
}
REFUSED = frozenset(
    {"InvalidMessageContents", "InvalidParameterValue", "BatchRequestTooLong", "MessageTooLong"}
)

UNREADABLE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""Raised by the client for a response that is not a JSON object, or too deep."""

HINTS: Mapping[int, str] = {
    401: "the credentials",
    403: "the credentials and what they may do",
    404: "`queue_url` and `endpoint_url`",
}
"""What to check by HTTP status, for responses without a known code."""


def _code(text: str) -> str:
    """Return the code by its name in SQS's JSON protocol; answers also have that of the older one.

    `KMS.DisabledException` there is `KmsDisabled`, and `AWS.SimpleQueueService.` may stand before.
    """
    name = text.rpartition("#")[2].replace("KMS.", "Kms").rpartition(".")[2]
    return name.removesuffix("Exception")


def of_entry(failed: Mapping[str, Any]) -> SinkError:
    code = _code(str(failed.get("Code", "")))
    if code in MISCONFIGURED:
        return Misconfigured(f"{code}: {MISCONFIGURED[code]}")
    if failed.get("SenderFault") and not _is_throttling(code):
        return Refused("SQS does not take the message", answer=code)
    return Temporary("SQS could not take the message now", answer=code, about_event=True)


def _is_throttling(code: str) -> bool:
    return "Throttl" in code or code in ("OverLimit", "SlowDown", "RequestLimitExceeded")


def classify(error: Exception) -> Exception:
    match error:
        case ClientError(response=response):
            return _client_failure(response)
        case SSLError():
            return tls.failure(error, peer="endpoint") or Temporary("TLS failed")
        case ConnectTimeoutError() | ReadTimeoutError() | TimeoutError():
            return Temporary("no answer in time")
        case EndpointConnectionError() | HTTPClientError() | OSError():
            return Temporary("could not connect, or the connection was lost")
        case BotoCoreError():
            return _library_failure(error)
    return error  # a bug, which must stay visible


def _library_failure(error: BotoCoreError) -> SinkError:
    name = type(error).__name__
    if "Credential" in name or "Region" in name or "Profile" in name or "Token" in name:
        return Misconfigured(f"{name}: look at the AWS credentials and the region")
    return Temporary(f"{name}: no answer that can be understood")


def _client_failure(response: Mapping[str, Any]) -> SinkError:
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = _code(str(response.get("Error", {}).get("Code", "")))
    if code in MISCONFIGURED:
        return Misconfigured(f"{code}: {MISCONFIGURED[code]}", status=status)
    if code in REFUSED:
        return Refused("SQS does not take the message", status=status, answer=code)
    if status in HINTS and not _is_throttling(code):
        reason = f"SQS answers {status}: look at {HINTS[status]}"
        return Misconfigured(reason, status=status, about_event=True)
    return Temporary(f"SQS answers {status}", status=status, about_event=True)
