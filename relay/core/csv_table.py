"""Tables as CSV that no spreadsheet takes for formulas: for page, commands and sandbox alike."""

import csv
import io
import re
from collections.abc import Iterable

# Beginnings of formulas, also in wide characters, which localized spreadsheets also accept.
_FORMULA = "[=+\\-@\uff1d\uff0b\uff0d\uff20]"
# A comma separates only where it does for the reader, too, who then honours the quotes around it.
# A quotation mark in front may be one of a cell's own to a reader that goes by another separator.
_SEPARATORS = "\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029;|"
_BLANK = rf'(?:[^\S{_SEPARATORS}]|")'
_ACTIVE = re.compile(rf"(?:^|(?<=[{_SEPARATORS}]))(?={_BLANK}*{_FORMULA})|^(?=[\t\r\n])")


def text(rows: Iterable[Iterable[object]], *, line_end: str = "\r\n") -> str:
    """Write rows; an apostrophe makes a text of what would be a formula. Numbers stay numbers."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator=line_end)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return written.getvalue()


def _cell(value: object) -> object:
    return _ACTIVE.sub("'", value) if isinstance(value, str) else value
