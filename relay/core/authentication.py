"""Turns headers and a raw body into an `Event`, or rejects them; nothing else creates one."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
import orjson

from relay.core import foreign_json, signature
from relay.core.api_settings import ApiSettings
from relay.core.config_values import Duration, Moment, Secret
from relay.core.event import Event, Unreadable
from relay.core.signature import Verified

NAME_MAX = 255
"""Maximum length of `id` and `event`, in characters."""

_CREDENTIALS = frozenset({b"authorization", b"cookie", b"proxy-authorization"})
_HEADERS_MAX = 64
_HEADER_MAX_BYTES = 1024

Headers = Sequence[tuple[bytes, bytes]]
"""As ASGI passes them: names in lower case, order and repetition kept."""


class SigningSecret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of a source's secrets, written as a table or as the secret alone."""

    SHORT: ClassVar[str] = "secret"

    secret: Secret
    label: str | None = None
    """Its name in logs and metrics; by default its position in the list, from 1."""
    until: Moment | None = None
    """It no longer verifies from this moment on."""


class SigningKey(NamedTuple):
    """A secret as bytes; `until_ms` is infinite for one that does not expire."""

    value: bytes
    label: str
    until_ms: float


class SourceSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True
):
    """`[[source]]`: a path on the public listener and the secrets that sign its requests."""

    name: str
    path: str
    secrets: tuple[SigningSecret, ...]
    """A signature by any of them verifies."""
    tolerance: Duration = Duration.parse("5m")
    """Maximum clock difference of a signature, both ways (video-service.md, section 6)."""
    signature_header: str = "Service-Signature"
    api: ApiSettings | None = None
    """The sender's API; None without one."""
    reconcile: Literal["ask", "auto", "off"] = "ask"
    """Whether an absence beyond the sender's retries is reconciled automatically or on command."""

    @cached_property
    def keys(self) -> tuple[SigningKey, ...]:
        """All secrets, expired ones included."""
        return tuple(
            SigningKey(
                secret.secret.reveal().encode(),
                secret.label or str(number),
                float("inf") if secret.until is None else secret.until,
            )
            for number, secret in enumerate(self.secrets, 1)
        )

    @cached_property
    def header(self) -> bytes:
        """The name of the signature header, as ASGI spells it."""
        return self.signature_header.lower().encode("latin-1")

    def expired(self, now_ms: int) -> tuple[SigningKey, ...]:
        """Return the secrets that have expired."""
        return tuple(key for key in self.keys if key.until_ms <= now_ms)


class Authenticated(NamedTuple):
    """A verified request: content, clock skew (ours minus the sender's) and the secret's label."""

    content: Event | Unreadable
    skew_s: int
    secret: str


class UnverifiedRequest(NamedTuple):
    """A well-formed request that matches no secret: forged, or signed with a secret still unknown.

    `signature` is the header's value; `headers` have the format of `Event.headers`.
    """

    source: str
    received_ms: int
    signature: bytes
    headers: bytes
    body: bytes

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.signature) + len(self.headers) + len(self.body)


def authenticate(
    source: SourceSettings, headers: Headers, body: bytes, *, now_ms: int
) -> Authenticated:
    """Verify the signature over the raw body, then read the envelope.

    Nothing is parsed before the signature has been verified.
    Raises Rejected.
    """
    header = source.header
    values = [value for name, value in headers if name == header]
    verified, label = _verify(source, values, body, now_ms=now_ms)
    content = read(source.name, _kept_head(headers), body, now_ms=now_ms)
    return Authenticated(content, verified.skew_s, label)


def unverified(
    source: SourceSettings, headers: Headers, body: bytes, *, now_ms: int
) -> UnverifiedRequest | None:
    """Return a mismatch in a form that can be verified later; None if its time is off as well."""
    value = next(value for name, value in headers if name == source.header)
    off_s = now_ms // 1000 - int(signature.parse(value).timestamp)
    if abs(off_s) * 1000 > source.tolerance:
        return None
    return UnverifiedRequest(source.name, now_ms, value, _kept_head(headers), body)


def reverify(source: SourceSettings, request: UnverifiedRequest) -> Authenticated:
    """Verify with the source's current secrets, as of the time of receipt; raises Rejected."""
    now_ms = request.received_ms
    verified, label = _verify(source, [request.signature], request.body, now_ms=now_ms)
    content = read(source.name, request.headers, request.body, now_ms=now_ms)
    return Authenticated(content, verified.skew_s, label)


def _verify(
    source: SourceSettings, values: Sequence[bytes], body: bytes, *, now_ms: int
) -> tuple[Verified, str]:
    keys = [key for key in source.keys if now_ms < key.until_ms]
    verified = signature.verify(
        values,
        body,
        secrets=[key.value for key in keys],
        now_s=now_ms // 1000,
        tolerance_ms=source.tolerance,
    )
    return verified, keys[verified.secret].label


def read(source: str, head: bytes, body: bytes, *, now_ms: int) -> Event | Unreadable:
    """Read the envelope of a body that is verified, or needs no verification.

    `head` has the format of `Event.headers`.
    """
    try:
        envelope = _parse(body)
        return Event(
            source=source,
            id=_name(envelope, "id"),
            kind=_name(envelope, "event"),
            created_at=_text(envelope.get("createdAt")),
            received_ms=now_ms,
            body=body,
            headers=head,
        )
    except ValueError as error:
        return Unreadable(
            source=source, received_ms=now_ms, body=body, headers=head, reason=str(error)
        )


def _parse(body: bytes) -> dict[str, Any]:
    # orjson refuses NaN, infinities and deep nesting, but of two equal keys it silently keeps the
    # last one, where another parser may keep the first.
    try:
        document = foreign_json.decode(body)
        if not _round_trips(document, body):
            document = _AS_WRITTEN.decode(body.decode())
    except (orjson.JSONDecodeError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("the body is not a JSON object")  # noqa: TRY004
    return document


def _round_trips(document: object, body: bytes) -> bool:
    """Check cheaply, for compact bodies, that parsing dropped no duplicate key."""
    try:
        return orjson.dumps(document) == body
    except orjson.JSONEncodeError:
        # orjson parses deeper nesting than it can write.
        return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("the body has a duplicate key")
    return members


_AS_WRITTEN = json.JSONDecoder(object_pairs_hook=_unique, parse_int=float)
"""Keeps half of a character, so that no replacement gives two events one id.

Integers are read as other numbers, because Python refuses thousands of digits."""


def _name(envelope: dict[str, Any], key: str) -> str:
    value = envelope.get(key)
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= NAME_MAX:
        raise ValueError(f"{key} is not a text of 1 to {NAME_MAX} printable characters")
    return value


def _text(value: object) -> str | None:
    return foreign_json.whole(value) if isinstance(value, str) else None


def _kept_head(headers: Headers) -> bytes:
    lines = [
        b"%b: %b\r\n" % (name, value[:_HEADER_MAX_BYTES])
        for name, value in headers[:_HEADERS_MAX]
        if name not in _CREDENTIALS
    ]
    return b"".join(lines)
