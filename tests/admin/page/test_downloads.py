"""Files of tables: a stranger's text is no formula in any spreadsheet."""

import csv
import io

import pytest

from relay.admin.page.downloads import as_csv


def cell(value: object) -> str:
    ((read,),) = csv.reader(io.StringIO(bytes(as_csv([[value]], "a.csv").body).decode()))
    return read


@pytest.mark.parametrize("begin", [*"=+-@＝＋－＠", "\t=", "\r=", "\n=", "\ta", " =", "\u00a0="])  # noqa: RUF001
def test_a_formula_begins_with_an_apostrophe(begin: str) -> None:
    assert cell(f"{begin}1+1") == f"'{begin}1+1"


@pytest.mark.parametrize("value", ["a=1", " a", "1-2", ""])
def test_other_texts_stay_as_they_are(value: str) -> None:
    assert cell(value) == value


def test_numbers_stay_numbers() -> None:
    assert cell(-1) == "-1"
