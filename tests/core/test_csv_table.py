"""Tables as CSV are free of formulas to every reader."""

import csv
from collections.abc import Sequence
from itertools import product

import pytest

from relay.core import csv_table

SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20"
DELIMITERS = (",", ";", "\t", "|")
BETWEEN = ("", " ", "\u00a0", '"', '""', ' "', '" ')


def cells(rows: Sequence[Sequence[object]], delimiter: str) -> list[str]:
    """Read a table as a spreadsheet does that goes by this separator."""
    # Line by line: to a reader that goes by another separator, a quote may hold no line together.
    read = csv.reader(csv_table.text(rows).splitlines(), delimiter=delimiter)
    return [cell for row in read for cell in row]


@pytest.mark.parametrize("delimiter", DELIMITERS)
@pytest.mark.parametrize("separator", [*DELIMITERS, "\n", "\r", "\r\n", "\v", "\u2028"])
def test_no_cell_begins_with_a_formula_whichever_separator_the_reader_goes_by(
    separator: str, delimiter: str
) -> None:
    for sign, between, begin in product(SIGNS, BETWEEN, ("", "a", 'a"', '"', "a, ")):
        text = f"{begin}{separator}{between}{sign}HYPERLINK(1)"
        for row in ([text, 7], ["x", text], ["x;y", text, text]):
            for cell in cells([row], delimiter):
                assert not cell.lstrip(' \t\u00a0"').startswith(tuple(SIGNS)), (row, cell)


def test_only_what_would_be_a_formula_is_marked() -> None:
    rows: list[list[object]] = [
        ["a;=1", "b", -1, None, 2.5],
        ["=1", " =1", "\ta", "a; b-c", "+1;-2"],
    ]
    assert csv_table.text(rows, line_end="\n") == (
        "a;'=1,b,-1,,2.5\n'=1,' =1,'\ta,a; b-c,'+1;'-2\n"
    )


def test_a_long_text_of_separators_and_blanks_is_written_at_once() -> None:
    for part in ("\t", " ", '"', "; "):
        assert csv_table.text([[part * 500_000 + "x"]])
