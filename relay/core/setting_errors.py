"""Faults of settings: collecting them, and words for a missing client, a mistyped name, a user."""

import pwd
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from relay.core.errors import InvalidTemplate, UnreadableSetting


class Faults:
    """Collects the errors of several checks, so that one failure does not hide the next."""

    def __init__(self) -> None:
        self._faults: list[Exception] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect a fault or UnreadableSetting that the block raises, alone or in a group."""
        try:
            yield
        except* (ValueError, InvalidTemplate, UnreadableSetting) as group:
            self._faults += flatten(group)

    def raise_all(self) -> None:
        """Raise the collected faults: one as it is, more than one as an ExceptionGroup."""
        if len(self._faults) == 1:
            raise self._faults[0]
        if self._faults:
            raise ExceptionGroup("more than one fault", self._faults)


def flatten(error: Exception) -> Iterator[Exception]:
    """Yield the leaves of nested exception groups, in order."""
    if not isinstance(error, ExceptionGroup):
        yield error
        return
    for inner in error.exceptions:
        yield from flatten(inner)


def missing_client(user: str, extra: str) -> str:
    """Say what to install; on the Python Package Index, `relay` is another project."""
    return (
        f"{user} needs its client: pip install '.[{extra}]' in the relay's checkout, "
        "or build the image with EXTRAS=all"
    )


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the most similar known name as a question to the operator; empty without one."""
    # Only a mistake needs it, and it takes memory.
    from difflib import get_close_matches  # noqa: PLC0415

    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def user_name(uid: int) -> str:
    """Return the name of a user of the system, or the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
