"""Tables as CSV, and stored bytes, as files."""

import csv
import io
from collections.abc import Iterable, Sequence

from starlette.responses import Response

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def as_csv(rows: Iterable[Sequence[object]], file: str) -> Response:
    """Send rows as a file that no spreadsheet takes for formulas."""
    text = io.StringIO()
    writer = csv.writer(text)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return _attachment(text.getvalue().encode(errors="replace"), file, "text/csv")


def as_bytes(content: bytes, file: str) -> Response:
    """Send a stranger's bytes as a file of no type, which no browser shows."""
    return _attachment(content, file, "application/octet-stream")


def _attachment(content: bytes, file: str, type_: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{file}"', "Cache-Control": "no-store"}
    return Response(content, 200, headers, type_)


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULAS):
        return f"'{value}"
    return value
