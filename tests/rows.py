"""Which rows of hostile-requests.md, section 7, the tests cover."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.hostile import HEADERS, UNREADABLE

COVERED = {odd.row for odd in HEADERS} | {odd.row for odd in UNREADABLE}

Test = TypeVar("Test", bound=Callable[..., object])


def row(*numbers: int) -> Callable[[Test], Test]:
    """Say that a test covers these rows, and show them in its id."""
    COVERED.update(numbers)
    shown = "row-" + "-".join(str(number) for number in numbers)

    def mark(test: Test) -> Test:
        return pytest.mark.parametrize("_row", [pytest.param(numbers, id=shown)], indirect=True)(
            test
        )

    return mark
