"""The only door to an `Event`: headers and a raw body become one here, or are rejected (pure)."""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import msgspec
import orjson

from relay.core import signature
from relay.core.config_values import Duration, Moment, Secret
from relay.core.event import Event, Unreadable
from relay.core.signature import Verified

NAME_MAX = 255
"""The longest `id` and `event` that are taken, in characters."""

_CREDENTIALS = frozenset({b"authorization", b"cookie", b"proxy-authorization"})
_HEADERS_MAX = 64
_HEADER_MAX_BYTES = 1024

Headers = Sequence[tuple[bytes, bytes]]
"""As ASGI hands them over: names in lower case, order and repetition kept."""


class SigningSecret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of a source's secrets; written as a table, or as the secret alone."""

    SHORT: ClassVar[str] = "secret"

    secret: Secret
    label: str | None = None
    """What logs and metrics call it; else its place in the list, from 1."""
    until: Moment | None = None
    """From then on it does not verify any more."""


class Key(NamedTuple):
    """A secret made ready for use; without an end, `until_ms` lies beyond all times."""

    value: bytes
    label: str
    until_ms: float


class KeyRing(NamedTuple):
    """Secrets that verify at one time, and their labels beside them."""

    values: tuple[bytes, ...]
    labels: tuple[str, ...]


class SourceSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True
):
    """`[[source]]`: a path on the public listener and the secrets that sign what arrives there."""

    name: str
    path: str
    secrets: tuple[SigningSecret, ...]
    """Any of them verifies."""
    tolerance: Duration = Duration.parse("5m")
    """How far a signature's time may be off, both ways (video-service.md, section 6)."""
    signature_header: str = "Service-Signature"

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """The secrets, with their labels."""
        return tuple(
            Key(
                secret.secret.reveal().encode(),
                secret.label or str(number),
                float("inf") if secret.until is None else secret.until,
            )
            for number, secret in enumerate(self.secrets, 1)
        )

    @cached_property
    def key_ring(self) -> "KeyRing":
        """What verifies before `first_end_ms`."""
        return _key_ring(self.keys)

    @cached_property
    def first_end_ms(self) -> float:
        return min((key.until_ms for key in self.keys), default=float("inf"))

    @cached_property
    def header(self) -> bytes:
        """The signature header as ASGI names it."""
        return self.signature_header.lower().encode("latin-1")

    def expired(self, now_ms: int) -> tuple[Key, ...]:
        """The secrets whose time is over."""
        return tuple(key for key in self.keys if key.until_ms <= now_ms)


class Authenticated(NamedTuple):
    """A verified request: what it holds, our time less its in seconds, and the secret's label."""

    content: Event | Unreadable
    skew_s: int
    secret: str


class UnverifiedRequest(NamedTuple):
    """A well-formed request that fits no secret: signed with one that is not here yet, or forged.

    `signature` is the header's value; `headers` are as an event's.
    """

    source: str
    received_ms: int
    signature: bytes
    headers: bytes
    body: bytes

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.signature) + len(self.headers) + len(self.body)


def authenticate(
    source: SourceSettings, headers: Headers, body: bytes, *, now_ms: int
) -> Authenticated:
    """Verify the signature over the raw body, then read the envelope.

    Nothing is parsed before the signature is known to be good.
    Raises Rejected.
    """
    header = source.header
    values = [value for name, value in headers if name == header]
    verified, label = _verify(source, values, body, now_ms=now_ms)
    content = _read(source.name, _kept_head(headers), body, now_ms=now_ms)
    return Authenticated(content, verified.skew_s, label)


def unverified(
    source: SourceSettings, headers: Headers, body: bytes, *, now_ms: int
) -> UnverifiedRequest | None:
    """Make of a mismatch what can be judged again; None where its time would be wrong as well."""
    value = next(value for name, value in headers if name == source.header)
    off_s = now_ms // 1000 - int(signature.parse(value).timestamp)
    if abs(off_s) * 1000 > source.tolerance:
        return None
    return UnverifiedRequest(source.name, now_ms, value, _kept_head(headers), body)


def reverify(source: SourceSettings, request: UnverifiedRequest) -> Authenticated:
    """Judge by the secrets that the source has by now, at the time of receipt; raises Rejected."""
    now_ms = request.received_ms
    verified, label = _verify(source, [request.signature], request.body, now_ms=now_ms)
    content = _read(source.name, request.headers, request.body, now_ms=now_ms)
    return Authenticated(content, verified.skew_s, label)


def _verify(
    source: SourceSettings, values: Sequence[bytes], body: bytes, *, now_ms: int
) -> tuple[Verified, str]:
    key_ring = source.key_ring
    if now_ms >= source.first_end_ms:
        key_ring = _key_ring(key for key in source.keys if now_ms < key.until_ms)
    verified = signature.verify(
        values,
        body,
        secrets=key_ring.values,
        now_s=now_ms // 1000,
        tolerance_ms=source.tolerance,
    )
    return verified, key_ring.labels[verified.secret]


def _key_ring(keys: Iterable[Key]) -> KeyRing:
    valid = tuple(keys)
    return KeyRing(tuple(key.value for key in valid), tuple(key.label for key in valid))


def read(source: str, headers: Headers, body: bytes, *, now_ms: int) -> Event | Unreadable:
    """Read the envelope of a body whose signature has been verified, or is not asked for."""
    return _read(source, _kept_head(headers), body, now_ms=now_ms)


def _read(source: str, head: bytes, body: bytes, *, now_ms: int) -> Event | Unreadable:
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
    # orjson refuses NaN, infinities, lone surrogates and deep nesting, but lets the last of two
    # equal keys win; which one the next reader takes is anybody's guess.
    try:
        document = orjson.loads(body)
        if not _round_trips(document, body):
            _KEYS.decode(body.decode())
    except (orjson.JSONDecodeError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("the body is not a JSON object")  # noqa: TRY004
    return document


def _round_trips(document: object, body: bytes) -> bool:
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


def _kept_head(headers: Headers) -> bytes:
    lines = [
        b"%b: %b\r\n" % (name, value[:_HEADER_MAX_BYTES])
        for name, value in headers[:_HEADERS_MAX]
        if name not in _CREDENTIALS
    ]
    return b"".join(lines)
