"""Signs and verifies the sender's signature header: `t=<unix time>,v1=<hex>` over the raw body.

Format: video-service.md, section 6, Signature; odd headers: hostile-requests.md, section 7.
"""

import hmac
import re
from collections.abc import Sequence
from typing import NamedTuple

from relay.core.errors import Rejected

HEADER_MAX_BYTES = 4096
PAIRS_MAX = 32
CANDIDATES_MAX = 8

_TIMESTAMP = re.compile(rb"[1-9][0-9]{0,11}")
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_BLANKS = b" \t"
_AS_DOCUMENTED = re.compile(rb"t=([1-9][0-9]{0,11}),v1=([0-9a-f]{64})")
"""The documented form; the rest of `parse` handles equivalent ones."""


class Signature(NamedTuple):
    """A parsed header; `timestamp` is the received text, because the signature covers it."""

    timestamp: bytes
    candidates: tuple[bytes, ...]


class Verified(NamedTuple):
    """Index of the matching secret, and the clock skew (ours minus the sender's) in seconds."""

    secret: int
    skew_s: int


def sign(secret: bytes, timestamp: bytes, body: bytes) -> bytes:
    """Return the lowercase hex digest of `<timestamp>.<body>`."""
    return hmac.digest(secret, timestamp + b"." + body, "sha256").hex().encode()


def header(secret: bytes, *, now_s: int, body: bytes) -> str:
    """Return the header value that the sender would send."""
    timestamp = b"%d" % now_s
    return f"t={timestamp.decode()},v1={sign(secret, timestamp, body).decode()}"


def parse(value: bytes) -> Signature:
    """Parse a header value; unknown schemes are ignored.

    Blanks around commas and at the ends are dropped.
    Raises Rejected("malformed").
    """
    documented = _AS_DOCUMENTED.fullmatch(value)
    if documented is not None:
        return Signature(documented[1], (documented[2],))
    if len(value) > HEADER_MAX_BYTES:
        raise Rejected("malformed")
    pairs = [pair.strip(_BLANKS).partition(b"=") for pair in value.split(b",")]
    if len(pairs) > PAIRS_MAX or not all(sign for _, sign, _ in pairs):
        raise Rejected("malformed")
    timestamps = [text for key, _, text in pairs if key == b"t"]
    candidates = [text for key, _, text in pairs if key == b"v1"]
    # Libraries disagree on whether the first or the last of two times counts, so two are refused.
    if len(timestamps) != 1 or _TIMESTAMP.fullmatch(timestamps[0]) is None:
        raise Rejected("malformed")
    well_formed = tuple(text for text in candidates if _DIGEST.fullmatch(text))
    if not well_formed or len(candidates) > CANDIDATES_MAX:
        raise Rejected("malformed")
    return Signature(timestamps[0], well_formed)


def verify(
    values: Sequence[bytes],
    body: bytes,
    *,
    secrets: Sequence[bytes],
    now_s: int,
    tolerance_ms: int,
) -> Verified:
    """Verify a request's signature header; any secret may match any candidate.

    The time is checked last, so that `stale` and `future` imply a valid signature.
    Raises Rejected.
    """
    if not values:
        raise Rejected("missing")
    if len(values) > 1:
        raise Rejected("ambiguous")
    signature = parse(values[0])
    matches = [_matches(secret, signature, body) for secret in secrets]
    if True not in matches:
        raise Rejected("mismatch")
    skew_s = now_s - int(signature.timestamp)
    if abs(skew_s) * 1000 > tolerance_ms:
        raise Rejected("stale" if skew_s > 0 else "future", skew_s=skew_s)
    return Verified(matches.index(True), skew_s)


def _matches(secret: bytes, signature: Signature, body: bytes) -> bool:
    expected = sign(secret, signature.timestamp, body)
    # Compare all candidates: an early exit would reveal by its timing which one matched.
    matches = [hmac.compare_digest(expected, candidate) for candidate in signature.candidates]
    return any(matches)
