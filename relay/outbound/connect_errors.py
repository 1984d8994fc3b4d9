"""Why there is no connection to a far end, as the operating system and TLS tell it."""

import socket

from relay.core.errors import SinkError, Temporary
from relay.outbound import tls


def failure(error: BaseException, *, peer: str) -> SinkError | None:
    """What an error means to an operator; None for one that only the client library can explain."""
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
