"""Faults of settings: how to install a missing client, and collecting faults of one sink."""

from collections.abc import Iterator
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
