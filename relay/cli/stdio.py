"""The process's standard streams: there, also where whoever started it has closed them."""

import os
import sys

_LAST = 2


def complete() -> None:
    """Put the null device in the place of each standard stream that is closed.

    Otherwise the next file or socket would get its number, and libuv aborts when it is to close a
    descriptor of these numbers.
    `sys.stdout` stays None, because what is written to it was not delivered to anybody, and the
    stdout sink says so.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= _LAST:
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, "r", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
