"""Explains why a captured request does not verify.

The texts contain neither the received digest nor the expected one.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import orjson

from relay.core import signature
from relay.core.config_values import Duration
from relay.core.errors import Rejected

_MARK = b"\xef\xbb\xbf"
_MILLISECONDS = re.compile(rb"[0-9]{13}")


class Diagnosis(msgspec.Struct, frozen=True):
    """The result, its explanation, and `cause`: a change to the request that a match proves."""

    result: str
    text: str
    cause: str = ""

    @property
    def good(self) -> bool:
        return self.result == "good"


def diagnose(
    header: bytes, body: bytes, *, secret: bytes, now_s: int, tolerance: Duration
) -> Diagnosis:
    """Verify a request as the receiver does, and find the reason of a failure."""
    try:
        verified = _verify(header, body, secret, now_s=now_s, tolerance_ms=tolerance)
    except Rejected as error:
        return _explain(error.reason, header, body, secret=secret, now_s=now_s, tolerance=tolerance)
    return Diagnosis("good", f"the signature matches; {_age(verified.skew_s)}")


def _explain(
    reason: str, header: bytes, body: bytes, *, secret: bytes, now_s: int, tolerance: Duration
) -> Diagnosis:
    if reason == "malformed":
        return Diagnosis(reason, f"the header is malformed: {_malformed(header)}")
    age_s = now_s - int(signature.parse(header).timestamp)
    if reason != "mismatch":
        off = f"{_age(age_s)}, and the tolerance is {tolerance.seconds:g} s"
        return Diagnosis(reason, f"the digest matches, but the time does not: {off}")
    candidates = len(signature.parse(header).candidates)
    one = candidates == 1
    negation = "the v1 digest does not match" if one else f"none of {candidates} v1 digests matches"
    text = f"{negation} this secret, time and body of {len(body)} bytes; {_age(age_s)}"
    return Diagnosis(reason, text, _cause(header, body, secret, now_s=now_s))


def _age(age_s: int) -> str:
    if age_s == 0:
        return "signed in the same second"
    return f"signed {abs(age_s)} s {'before' if age_s > 0 else 'after'} the time of the check"


def _verify(
    header: bytes, body: bytes, secret: bytes, *, now_s: int, tolerance_ms: int
) -> signature.Verified:
    return signature.verify(
        [header], body, secrets=[secret], now_s=now_s, tolerance_ms=tolerance_ms
    )


def _malformed(header: bytes) -> str:
    if not header.strip():
        return "it is empty"
    if len(header) > signature.HEADER_MAX_BYTES:
        return f"it is longer than {signature.HEADER_MAX_BYTES} bytes"
    parts = [part.strip(b" \t").partition(b"=") for part in header.split(b",")]
    if len(parts) > signature.PAIRS_MAX:
        return f"it has {len(parts)} parts, and {signature.PAIRS_MAX} are the most"
    for number, (_, sign, _) in enumerate(parts, 1):
        if not sign:
            return f'part {number} of {len(parts)} has no "="'
    times = [value for key, _, value in parts if key == b"t"]
    return _bad_time(times) or _bad_digests([value for key, _, value in parts if key == b"v1"])


def _bad_time(times: list[bytes]) -> str:
    if len(times) != 1:
        return f"it has {len(times)} parts t=, and one was expected"
    if _MILLISECONDS.fullmatch(times[0]):
        return "t is in milliseconds, and seconds were expected"
    if re.fullmatch(rb"[1-9][0-9]{0,11}", times[0]) is None:
        return "t is not a unix time in whole seconds"
    return ""


def _bad_digests(digests: list[bytes]) -> str:
    if not digests:
        return "it has no part v1="
    if len(digests) > signature.CANDIDATES_MAX:
        return f"it has {len(digests)} parts v1=, and {signature.CANDIDATES_MAX} are the most"
    if any(re.fullmatch(rb"[0-9A-Fa-f]{64}", digest) for digest in digests):
        return "v1 has capital letters, and lowercase hex was expected"
    return f"v1 has {len(digests[0])} characters, and 64 of lowercase hex were expected"


def _cause(header: bytes, body: bytes, secret: bytes, *, now_s: int) -> str:
    """Describe the first alteration with which the signature matches; empty without one."""

    def matches(body: bytes, secret: bytes) -> bool:
        try:
            _verify(header, body, secret, now_s=now_s, tolerance_ms=1 << 62)
        except Rejected:
            return False
        return True

    for change, altered in _alterations(body):
        if altered != body and matches(altered, secret):
            return f"the signature matches once {change}: the body was changed on its way"
    if secret != secret.strip() and matches(body, secret.strip()):
        return "the signature matches once white space around the secret is dropped"
    return ""


def _alterations(body: bytes) -> Iterator[tuple[str, bytes]]:
    yield "the trailing newline is dropped", body.removesuffix(b"\n")
    yield "the trailing newline (CRLF) is dropped", body.removesuffix(b"\r\n")
    yield "a trailing newline is added", body + b"\n"
    yield "a trailing newline (CRLF) is added", body + b"\r\n"
    yield "CRLF line ends are turned into LF", body.replace(b"\r\n", b"\n")
    yield "LF line ends are turned into CRLF", body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    yield "white space around the body is dropped", body.strip()
    yield "the byte order mark is dropped", body.removeprefix(_MARK)
    for name, encode in _ENCODERS.items():
        try:
            yield f"the JSON is written {name}", encode(orjson.loads(body)).encode()
        except (ValueError, TypeError, RecursionError):
            return  # not JSON, or nested deeper than it can be written


_ENCODERS: dict[str, Callable[[Any], str]] = {
    "without blanks": lambda document: orjson.dumps(document).decode(),
    "without blanks, in ASCII": lambda document: json.dumps(document, separators=(",", ":")),
    "with blanks after commas and colons": lambda document: json.dumps(
        document, ensure_ascii=False
    ),
    "with blanks after commas and colons, in ASCII": json.dumps,
    "on indented lines": lambda document: json.dumps(document, indent=2, ensure_ascii=False),
}
