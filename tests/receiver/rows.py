"""Which rows of hostile-requests.md, section 7, the tests cover."""

import pytest

from tests.receiver.hostile import HEADERS, UNREADABLE

COVERED = {odd.row for odd in HEADERS} | {odd.row for odd in UNREADABLE}


def row(*numbers: int) -> pytest.MarkDecorator:
    """Say that a test covers these rows, and show them in its id."""
    COVERED.update(numbers)
    shown = "row-" + "-".join(str(number) for number in numbers)
    given = pytest.param(numbers, id=shown)
    return pytest.mark.parametrize("_row", [given], indirect=True)
