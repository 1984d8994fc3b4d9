"""What is wrong with one sink's settings, gathered by its `build` to be told all at once."""

from collections.abc import Iterator
from contextlib import contextmanager

from relay.core.errors import InvalidTemplate


class Faults:
    """Goes on after a fault, until nothing more can be judged."""

    def __init__(self) -> None:
        self._found: list[Exception] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep the ValueError or InvalidTemplate that ends the block, or a group of them."""
        try:
            yield
        except* (ValueError, InvalidTemplate) as group:
            self._found += each(group)

    def tell(self) -> None:
        """Raises what was noted: one fault as it is, more of them in an ExceptionGroup."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            raise ExceptionGroup("more than one fault", self._found)


def each(error: Exception) -> Iterator[Exception]:
    """The faults in a group, or the one that stands alone, in the order of their noting."""
    if not isinstance(error, ExceptionGroup):
        yield error
        return
    for inner in error.exceptions:
        yield from each(inner)
