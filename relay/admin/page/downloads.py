"""Tables as CSV, stored bytes, and personal data as JSON, as files."""

import csv
import io
from collections.abc import AsyncIterator, Iterable, Sequence

from starlette.responses import Response, StreamingResponse

_FORMULAS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""Beginnings of formulas, also in wide characters, which spreadsheets of some languages take."""

_SPACES = ("\t", "\r", "\n")


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


async def as_json(parts: AsyncIterator[bytes], file: str) -> Response:
    """Send a file while it is read; an error before its first part raises."""
    first = await anext(parts)

    async def all_parts() -> AsyncIterator[bytes]:
        yield first
        async for part in parts:
            yield part

    return StreamingResponse(all_parts(), 200, _headers(file), "application/json")


def _attachment(content: bytes, file: str, type_: str) -> Response:
    return Response(content, 200, _headers(file), type_)


def _headers(file: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{file}"', "Cache-Control": "no-store"}


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    is_active = value.startswith(_SPACES) or value.strip().startswith(_FORMULAS)
    return f"'{value}" if is_active else value
