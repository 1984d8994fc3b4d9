"""TLS towards destinations: trusted CAs, client certificates; meanings of failures to connect.

outgoing-http.md, sections 7 and 8.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Iterator
from functools import cache

import certifi
import httpx

from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.setting_errors import Faults
from relay.core.sink import SinkSettings

_VERDICT_S = 1.0
_CERTIFICATE_ALERT = re.compile("ALERT_.*(CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED)")

_HANDSHAKES = (
    (
        re.compile("UNSUPPORTED_PROTOCOL|ALERT_PROTOCOL_VERSION|WRONG_SSL_VERSION"),
        "the {peer} speaks no version of TLS from 1.2 on",
    ),
    (re.compile("WRONG_VERSION_NUMBER"), "the {peer} does not speak TLS at this port"),
    (re.compile("HANDSHAKE_FAILURE"), "the {peer} and the relay have no TLS cipher in common"),
    (re.compile("UNRECOGNIZED_NAME"), "the {peer} does not serve this host name over TLS"),
)
"""Meanings of OpenSSL's reasons; any other is named as it is."""

_UNNAMED = "TLS failed"


class TlsSettings(SinkSettings, frozen=True, kw_only=True):
    """Settings of a sink with TLS; the keys name PEM files."""

    ca_file: str | None = None
    """Verifies the destination in place of the system's CAs."""
    client_cert_file: str | None = None
    client_key_file: str | None = None
    """Only if the key is not in `client_cert_file`."""


def is_asked_for(files: TlsSettings) -> bool:
    return any((files.ca_file, files.client_cert_file, files.client_key_file))


def has_system_cas() -> bool:
    paths = ssl.get_default_verify_paths()
    return paths.cafile is not None or paths.capath is not None


def trusting(ca_file: str | None = None) -> ssl.SSLContext:
    """Trust the system's CAs, or those of a file alone; raises OSError for the file."""
    if ca_file is None and not has_system_cas():
        return httpx.create_ssl_context(trust_env=False)  # the CAs that come with httpx
    return ssl.create_default_context(cafile=ca_file)


@cache
def for_http() -> ssl.SSLContext:
    """Trust the system's CAs, in one context for all HTTP clients; httpx sets its ALPN on it.

    Loading the CAs takes about 30 ms (outgoing-http.md, section 7).
    """
    return trusting()


@cache
def _for_brokers() -> ssl.SSLContext:
    return trusting()


def default_cas() -> str:
    """Path of the CAs that `trusting` falls back on, for clients with TLS of their own."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath or certifi.where()


def context(files: TlsSettings) -> ssl.SSLContext:
    """Load the files; raises ValueErrors as `Faults` does, each with the key at fault before it.

    Sinks without files share one context.
    """
    if not is_asked_for(files):
        return _for_brokers()
    faults = Faults()
    loaded = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with faults.collect():
        loaded = _with_cas(files.ca_file)
    with faults.collect():
        _identify(loaded, files)
    faults.raise_all()
    return loaded


def beside(files: TlsSettings) -> ssl.SSLContext | None:
    """Trust the system's CAs and those of usable files, for a service that a destination needs.

    None where there are no files.
    """
    if not is_asked_for(files):
        return None
    loaded = trusting()
    if files.ca_file:
        loaded.load_verify_locations(files.ca_file)
    _identify(loaded, files)
    return loaded


def _with_cas(ca_file: str | None) -> ssl.SSLContext:
    try:
        return trusting(ca_file)
    except OSError as error:
        raise ValueError(f"ca_file: {_why(error)}") from None


def _identify(loaded: ssl.SSLContext, files: TlsSettings) -> None:
    if files.client_key_file and not files.client_cert_file:
        raise ValueError("client_key_file: needs client_cert_file")
    if not files.client_cert_file:
        return
    try:
        # An empty passphrase, or OpenSSL would ask for one at the terminal.
        loaded.load_cert_chain(files.client_cert_file, files.client_key_file, "")
    except OSError as error:
        raise ValueError(f"client_cert_file, client_key_file: {_why(error)}") from None


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "holds no usable PEM, or certificate and key do not fit"
    return f"cannot be read: {error.strerror}"


def failure(error: BaseException, *, peer: str) -> SinkError | None:
    """Return the meaning of a TLS error among an error and its causes; None without one."""
    failures = filter(None, (_failure(cause, peer) for cause in causes(error)))
    # A certificate says more than that the handshake failed, and a reason more than none.
    return min(
        failures,
        key=lambda failure: (isinstance(failure, Temporary), failure.reason == _UNNAMED),
        default=None,
    )


def _failure(error: BaseException, peer: str) -> SinkError | None:
    match error:
        # Errors of aiohttp are errors of `ssl` as well, but without its message.
        case ssl.SSLCertVerificationError(verify_message=str(message)):
            why = message.rstrip(".") or "the reason is unknown"
            return Misconfigured(f"the {peer}'s TLS certificate does not verify: {why}")
        case ssl.SSLError(reason=str(reason)) if _CERTIFICATE_ALERT.search(reason):
            return Misconfigured(f"the {peer} does not accept our TLS certificate")
        case ssl.SSLError(reason=str(reason)):
            texts = (text for named, text in _HANDSHAKES if named.search(reason))
            return Temporary(next(texts, f"{_UNNAMED} ({reason})").format(peer=peer))
        case ssl.SSLError():
            return Temporary(_UNNAMED)
    return None


def connect_failure(error: BaseException, *, peer: str) -> SinkError | None:
    """Return the meaning of a failure to connect; None if only the client library can explain it.

    It is one of TLS, or as the operating system reports it.
    """
    of_tls = failure(error, peer=peer)
    if of_tls is not None:
        return of_tls
    match error:
        case socket.gaierror():
            return Temporary("name not found")
        case ConnectionRefusedError():
            return Temporary("connection refused")
        case TimeoutError():
            return Temporary("could not connect in time")
        case OSError():
            return Temporary("could not connect")
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, the members of a group, and all that they were raised from, each once."""
    left: list[BaseException | None] = [error]
    seen = set[int]()
    while left:
        cause = left.pop(0)
        # aiormq raises an error from itself.
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        # Any wait for bytes over TLS leaves one of these behind; it says nothing.
        if not isinstance(cause, ssl.SSLWantReadError | ssl.SSLWantWriteError):
            yield cause
        members = cause.exceptions if isinstance(cause, BaseExceptionGroup) else ()
        left[:0] = [*members, cause.__cause__ or cause.__context__]


async def verdict(reader: asyncio.StreamReader, *, peer: str) -> SinkError | None:
    """Return the peer's error about our certificate, from a connection on which we send nothing.

    TLS 1.3 lets a client send before its certificate is checked (RFC 8446, section 4.4.2.4); the
    connection may then be reset without the reason.
    """
    try:
        async with asyncio.timeout(_VERDICT_S):
            await reader.read(1)
    except OSError as error:
        return failure(error, peer=peer)
    return None


async def ask_verdict(
    host: str | None, port: int | None, context: ssl.SSLContext | None, *, peer: str
) -> SinkError | None:
    """Connect once more, to read the peer's verdict on our certificate."""
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except OSError as error:
        return failure(error, peer=peer)
    try:
        return await verdict(reader, peer=peer)
    finally:
        writer.transport.abort()
