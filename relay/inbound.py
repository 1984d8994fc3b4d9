"""The only door to an `Event`: headers and a raw body become one here, or are rejected (pure)."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import orjson

from relay import signature
from relay.event import Event, Unreadable
from relay.settings import Duration, Secret

NAME_MAX = 255
"""The longest `id` and `event` that are taken, in characters."""

_CREDENTIALS = frozenset({b"authorization", b"cookie", b"proxy-authorization"})
_KEPT_HEADERS = 64
_KEPT_HEADER_BYTES = 1024

Headers = Sequence[tuple[bytes, bytes]]
"""As ASGI hands them over: names in lower case, order and repetition kept."""


class SourceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[source]]`: a path on the public listener and the secrets that sign what arrives there."""

    name: str
    path: str
    secrets: tuple[Secret, ...]
    """Any of them verifies."""
    tolerance: Duration = Duration.parse("5m")
    """How far a signature's time may be off, both ways (video-service.md, section 6)."""
    signature_header: str = "Service-Signature"


class Authenticated(NamedTuple):
    """A verified request: what it holds, and our time less its time in seconds."""

    content: Event | Unreadable
    skew_s: int


def authenticate(
    source: SourceSettings, headers: Headers, body: bytes, *, now_ms: int
) -> Authenticated:
    """Verify the signature over the raw body, then read the envelope.

    Nothing is parsed before the signature is known to be good.
    Raises Rejected.
    """
    wanted = source.signature_header.lower().encode("latin-1")
    verified = signature.verify(
        [value for name, value in headers if name == wanted],
        body,
        secrets=[secret.reveal().encode() for secret in source.secrets],
        now_s=now_ms // 1000,
        tolerance_ms=source.tolerance,
    )
    return Authenticated(read(source.name, headers, body, now_ms=now_ms), verified.skew_s)


def read(source: str, headers: Headers, body: bytes, *, now_ms: int) -> Event | Unreadable:
    """Read the envelope of a body whose signature has been verified, or is not asked for."""
    kept = _kept(headers)
    try:
        envelope = _parse(body)
        return Event(
            source=source,
            id=_name(envelope, "id"),
            kind=_name(envelope, "event"),
            created_at=_text(envelope.get("createdAt")),
            received_ms=now_ms,
            body=body,
            headers=kept,
        )
    except ValueError as error:
        return Unreadable(
            source=source, received_ms=now_ms, body=body, headers=kept, reason=str(error)
        )


def _parse(body: bytes) -> dict[str, Any]:
    # orjson refuses NaN, infinities, lone surrogates and deep nesting, but lets the last of two
    # equal keys win; which one the next reader takes is anybody's guess.
    try:
        document = orjson.loads(body)
        if not _comes_back(document, body):
            _KEYS.decode(body.decode())
    except (orjson.JSONDecodeError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("the body is not a JSON object")  # noqa: TRY004
    return document


def _comes_back(document: object, body: bytes) -> bool:
    """Whether encoding gives the same bytes, as with compact bodies: then no key was lost."""
    try:
        return orjson.dumps(document) == body
    except orjson.JSONEncodeError:
        # It writes less deeply than it reads.
        return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key of the body stands there twice")
    return members


_KEYS = json.JSONDecoder(object_pairs_hook=_unique)


def _name(envelope: dict[str, Any], key: str) -> str:
    value = envelope.get(key)
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= NAME_MAX:
        raise ValueError(f"{key} is not a text of 1 to {NAME_MAX} printable characters")
    return value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _kept(headers: Headers) -> bytes:
    lines = [
        b"%b: %b\r\n" % (name, value[:_KEPT_HEADER_BYTES])
        for name, value in headers[:_KEPT_HEADERS]
        if name not in _CREDENTIALS
    ]
    return b"".join(lines)
