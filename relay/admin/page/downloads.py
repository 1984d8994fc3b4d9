"""Tables as CSV."""

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
    headers = {"Content-Disposition": f'attachment; filename="{file}"', "Cache-Control": "no-store"}
    return Response(text.getvalue().encode(errors="replace"), 200, headers, "text/csv")


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULAS):
        return f"'{value}"
    return value
