"""Meanings of the Redis client's failures."""

from collections.abc import Mapping

from redis.exceptions import AuthenticationError, InvalidResponse, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from relay.core.errors import Meaning, Misconfigured, SinkError, Temporary
from relay.outbound import tls

MEANINGS: Mapping[str, Meaning] = {
    "NOAUTH": (Misconfigured, "the server asks for a password"),
    "WRONGPASS": (Misconfigured, "wrong user or password"),
    "DENIED": (
        Misconfigured,
        "the server is in protected mode and serves its own machine only: give it a password",
    ),
    "NOPERM": (Misconfigured, "the user may not XADD to this stream, or SELECT this database"),
    "WRONGTYPE": (Misconfigured, "the key of the stream holds something else"),
    "MOVED": (
        Misconfigured,
        "another node of this Redis Cluster has the stream: put that node's address into `url`",
    ),
    "ASK": (Temporary, "the stream is moving to another node of the cluster"),
    "OOM": (Temporary, "the server is at its maxmemory"),
    "LOADING": (Temporary, "the server is loading its data"),
    "READONLY": (Temporary, "the server is a read-only replica"),
    "MASTERDOWN": (Temporary, "the server has lost its master"),
    "MISCONF": (Temporary, "the server cannot write to its disk"),
    "NOREPLICAS": (Temporary, "the server has too few replicas"),
    "CLUSTERDOWN": (Temporary, "the cluster is down"),
}
"""Meanings by the first word of the server's error; any other is temporary."""

OF_KEY = frozenset({"NOPERM", "WRONGTYPE", "MOVED", "ASK"})
"""Errors that depend on the key, which a template may build from the event."""

SENTINEL = (
    "a Redis Sentinel answers there, which holds no streams: put its address into `sentinel`, and "
    "the name of its master into `url`, in the host's place"
)

UNNAMED: Mapping[str, str] = {
    "DB index is out of range": "the server has no database of this number",
    "unknown command 'SELECT'": SENTINEL,
    "unknown command": "the server does not know XADD",
}
"""Beginnings of errors without a word of their own that need an operator."""

UNREADABLE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""Raised by the client for a reply that breaks the protocol, besides its InvalidResponse."""


def code(error: BaseException) -> str:
    """Return the first word of the server's error."""
    status = getattr(error, "status_code", None)
    return str(status or str(error).partition(" ")[0])


def classify(error: Exception) -> Exception:
    if not isinstance(error, RedisError | OSError):
        return error  # a bug, which must stay visible
    # Behind Sentinels the client wraps the error of a master that was demoted.
    named = next((code(each) for each in tls.causes(error) if code(each) in MEANINGS), None)
    if named is not None:
        kind, text = MEANINGS[named]
        return kind(f"{named}: {text}", about_event=named in OF_KEY)
    of_tls = tls.failure(error, peer="server")
    if of_tls is not None:
        return of_tls
    for cause in tls.causes(error):
        match cause:
            case AuthenticationError():
                return Misconfigured("wrong user or password")
            case ResponseError():
                return _unnamed(str(cause))
            case InvalidResponse():
                return Temporary("what answers there is not a Redis server")
            case RedisTimeout() | TimeoutError():
                return Temporary("no answer in time")
            case ConnectionRefusedError():
                return Temporary("connection refused")
    return Temporary("could not connect, or the connection was lost")


def _unnamed(said: str) -> SinkError:
    for beginning, text in UNNAMED.items():
        if said.startswith(beginning):
            return Misconfigured(text)
    return Temporary("the server answers with an error that is not known here", about_event=True)
