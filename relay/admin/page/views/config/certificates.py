"""Ends of the certificates in PEM files."""

import re
import ssl
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from relay.core.config_values import read_bytes

CA_KEY, CLIENT_KEY = "ca_file", "client_cert_file"

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0
_BEFORE_VALIDITY = 3
"""Serial number, algorithm and issuer (RFC 5280, section 4.1)."""
_CENTURY_YEAR = 50
"""Two digits of a year below it belong to this century (RFC 5280, section 4.1.2.5.1)."""

Field = tuple[int, bytes]
"""Tag and content."""


class CertificateFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a sink."""

    sink: str
    key: str
    path: str
    count: int = 0
    ends_ms: int | None = None
    """Until when it is of use: a chain until its first end, trusted CAs until the last."""
    fault: str | None = None
    """Why it could not be read."""


def read_file(sink: str, key: str, path: str) -> CertificateFile:
    """Read a file now; blocks."""
    try:
        ends = ends_of(read_bytes(path))
    except ValueError as error:
        return CertificateFile(sink=sink, key=key, path=path, fault=str(error))
    ends_ms = (max if key == CA_KEY else min)(ends, default=None)
    return CertificateFile(sink=sink, key=key, path=path, count=len(ends), ends_ms=ends_ms)


def ends_of(pem: bytes) -> Sequence[int]:
    """Return the end of each certificate's validity, in milliseconds; raises ValueError."""
    try:
        blocks = [match[0].decode("ascii") for match in _PEM.finditer(pem)]
        return [_end_ms(ssl.PEM_cert_to_DER_cert(block)) for block in blocks]
    except (IndexError, ValueError):
        raise ValueError("holds something that is not a certificate") from None


def _end_ms(der: bytes) -> int:
    (_, certificate), *_ = _fields(der)
    (_, content), *_ = _fields(certificate)
    fields = [each for each in _fields(content) if each[0] != _VERSION]
    tag, validity = fields[_BEFORE_VALIDITY]
    _, (kind, text) = _fields(validity)
    if tag != _SEQUENCE or kind not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError
    digits = text.decode("ascii").removesuffix("Z")
    if kind == _UTC_TIME:
        digits = ("20" if int(digits[:2]) < _CENTURY_YEAR else "19") + digits
    end = datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return int(end.timestamp() * 1000)


def _fields(der: bytes) -> Iterator[Field]:
    """Yield the fields of a DER value; raises IndexError and ValueError for other bytes."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        if at + length > len(der):
            raise ValueError
        yield tag, der[at : at + length]
        at += length
