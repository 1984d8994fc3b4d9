"""Meanings of SQS's responses and of its client's failures."""

import re
from collections.abc import Mapping
from typing import Any

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
    ReadTimeoutError,
    SSLError,
)

from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.outbound import tls
from relay.outbound.http import proxy_failures

_OF_KEY: Mapping[str, str] = {
    "AccessDenied": "the credentials may not use the queue's key",
    "Disabled": "the queue's key is disabled",
    "InvalidKeyUsage": "the queue's key is not one for encryption",
    "InvalidState": "the queue's key is in a state in which it cannot be used",
    "NotFound": "the queue's key does not exist",
    "OptInRequired": "the account is not signed up for the service of the queue's key",
}
_PREFIX_OF_KEY = re.compile(r"KMS\.|Kms")
"""Of codes about the queue's key: `KMS.` in entries, `Kms` in the JSON protocol."""

MISCONFIGURED: Mapping[str, str] = {
    "AccessDenied": "the credentials may not do this on the queue",
    "ExpiredToken": "the credentials have expired",
    "IncompleteSignature": "the request is not signed as SQS wants it",
    "InvalidAddress": "`queue_url` is no queue's",
    "InvalidClientTokenId": "the access key is unknown",
    "InvalidKeyUsage": _OF_KEY["InvalidKeyUsage"],
    "InvalidSecurity": "the request is not signed as the queue wants it",
    "InvalidSignature": "the secret key or the region is wrong, or our clock is",
    "InvalidState": _OF_KEY["InvalidState"],
    "MissingAuthenticationToken": "the queue asks for credentials",
    "MissingParameter": "the queue wants more: the name of a FIFO queue ends with .fifo",
    "NonExistentQueue": "the queue does not exist",
    "NotAuthorized": "the credentials may not do this on the queue",
    "OptInRequired": "the account is not signed up for SQS",
    "QueueDoesNotExist": "the queue does not exist",
    "RequestExpired": "our clock is wrong, or the request was held up on its way",
    "SignatureDoesNotMatch": "the secret key or the region is wrong, or our clock is",
    "UnknownOperation": "what answers at `endpoint_url` does not know SendMessageBatch",
    "UnrecognizedClient": "the access key is unknown",
    "UnsupportedOperation": "the queue does not support SendMessageBatch",
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

_CODE = re.compile(r"[A-Za-z][A-Za-z0-9]*(\.[A-Za-z][A-Za-z0-9]*)*")
_CODE_MAX = 80


def _code(said: object) -> str:
    """Return the code without the service's name and `Exception`; "" for anything else.

    The protocols differ in both: `AWS.SimpleQueueService.NonExistentQueue` is
    `com.amazonaws.sqs#QueueDoesNotExist`, `KMS.DisabledException` is `KmsDisabled`.
    """
    name = str(said).rpartition("#")[2].removeprefix("AWS.SimpleQueueService.")
    code = name.removesuffix("Exception")
    return code if len(code) <= _CODE_MAX and _CODE.fullmatch(code) else ""


def _misconfigured(code: str) -> str | None:
    """Return what an operator has to mend; None for a code that says something else."""
    of_key = _PREFIX_OF_KEY.match(code)
    return MISCONFIGURED.get(code) if of_key is None else _OF_KEY.get(code[of_key.end() :])


def of_entry(failed: Mapping[str, Any]) -> SinkError:
    """Return the error of one entry of a batch; the code is SQS's, the message is not repeated."""
    code = _code(failed.get("Code", ""))
    meaning = _misconfigured(code)
    if meaning is not None:
        return Misconfigured(f"{code}: {meaning}")
    is_about_message = not (_is_throttling(code) or _PREFIX_OF_KEY.match(code))
    if failed.get("SenderFault") and is_about_message:
        return Refused(_saying(code, "SQS does not take the message"))
    return Temporary(_saying(code, "SQS could not take the message now"), about_event=True)


def _saying(code: str, text: str) -> str:
    return f"{code}: {text}" if code else text


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
        case ProxyConnectionError():
            return _proxy_failure(error)
        case EndpointConnectionError() | HTTPClientError() | OSError():
            return Temporary("could not connect, or the connection was lost")
        case BotoCoreError():
            return _library_failure(error)
    return error  # a bug, which must stay visible


def _proxy_failure(error: ProxyConnectionError) -> SinkError:
    causes = tuple(tls.causes(error))
    by_system = (tls.connect_failure(cause, peer="proxy") for cause in reversed(causes))
    reason = next((failure.reason for failure in by_system if failure), "could not connect")
    of_client = (cause for cause in causes if isinstance(cause, aiohttp.ClientError))
    return proxy_failures.of_connecting(next(of_client, error), reason)


def _library_failure(error: BotoCoreError) -> SinkError:
    name = type(error).__name__
    if "Credential" in name or "Region" in name or "Profile" in name or "Token" in name:
        return Misconfigured(f"{name}: look at the AWS credentials and the region")
    return Temporary(f"{name}: no answer that can be understood")


def _client_failure(response: Mapping[str, Any]) -> SinkError:
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = _code(response.get("Error", {}).get("Code", ""))
    meaning = _misconfigured(code)
    if meaning is not None:
        return Misconfigured(f"{code}: {meaning}", status=status)
    if code in REFUSED:
        return Refused(f"{code}: SQS does not take the message", status=status)
    if status in HINTS and not _is_throttling(code):
        reason = _saying(code, f"SQS answers {status}: look at {HINTS[status]}")
        return Misconfigured(reason, status=status, about_event=True)
    return Temporary(_saying(code, f"SQS answers {status}"), status=status, about_event=True)
