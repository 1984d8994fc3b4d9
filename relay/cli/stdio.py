"""Opens standard streams that the parent process has closed."""

import os
import sys

_LAST = 2


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
