"""Standard streams: opened where the parent process has closed them, and good for any text."""

import codecs
import io
import json
import os
import sys

_LAST = 2
_ESCAPED = "relay.escaped"


def complete() -> None:
    """Open the null device for each closed standard stream.

    Otherwise the next file or socket gets its descriptor, and libuv aborts when it closes one of
    these numbers.
    `sys.stdout` stays None, so that the stdout sink fails instead of losing events.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= _LAST:
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, "r", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def escape() -> None:
    """Escape what the encoding of an output cannot hold, as JSON does, so that JSON stays JSON."""
    codecs.register_error(_ESCAPED, _escaped)
    for stream in (sys.stdout, sys.stderr):
        # A process that serves has replaced them.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
