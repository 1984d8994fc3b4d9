"""Meanings of failures to connect, as reported by the operating system and TLS."""

import socket

from relay.core.errors import SinkError, Temporary
from relay.outbound import tls


def failure(error: BaseException, *, peer: str) -> SinkError | None:
    """Return the sink error for an exception; None if only the client library can explain it."""
    of_tls = tls.failure(error, peer=peer)
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
