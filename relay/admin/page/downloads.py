"""Tables as CSV, stored bytes, and personal data as JSON, as files."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from relay.admin.problem import problem_of
from relay.core import csv_table
from relay.core.clock import Clock
from relay.core.errors import Stopping, StoreError

Rows = Sequence[Sequence[object]]


async def as_csv(parts: AsyncIterator[Rows], file: str, clock: Clock) -> Response:
    """Send rows while they are read, as a file that no spreadsheet takes for formulas.

    An error before the first rows raises; a later one ends the file with a row that says so.
    """
    return await _streamed(_csv_parts(parts, clock), file, "text/csv", cut=_cut_row)


def as_bytes(content: bytes, file: str) -> Response:
    """Send a stranger's bytes as a file of no type, which no browser shows."""
    return Response(content, 200, _headers(file), "application/octet-stream")


async def as_json(parts: AsyncIterator[bytes], file: str) -> Response:
    """Send an object of lists while it is read; an error before its first part raises.

    A later one ends the list that is open, and `incomplete` says why the rest is missing.
    """
    is_begun = False

    async def watched() -> AsyncGenerator[bytes, None]:
        nonlocal is_begun
        async for part in parts:
            is_begun = is_begun or bool(part)
            yield part

    def cut(error: Exception) -> bytes:
        reason = orjson.dumps(_missing(error))
        return (b"\n],\n" if is_begun else b"{\n") + b'"incomplete": ' + reason + b"\n}\n"

    return await _streamed(watched(), file, "application/json", cut=cut)


async def _csv_parts(parts: AsyncIterator[Rows], clock: Clock) -> AsyncGenerator[bytes, None]:
    begun_s = clock.monotonic()
    async for rows in parts:
        # In a thread, because hundreds of rows would delay acknowledgements.
        text = await asyncio.to_thread(_csv, rows)
        spent_s = clock.monotonic() - begun_s
        yield text
        # A file of millions of rows takes minutes, so half the time is left to acknowledgements.
        await asyncio.sleep(spent_s)
        begun_s = clock.monotonic()


async def _streamed(
    parts: AsyncIterator[bytes], file: str, type_: str, *, cut: Callable[[Exception], bytes]
) -> Response:
    first = await anext(parts)

    async def all_parts() -> AsyncGenerator[bytes, None]:
        yield first
        try:
            async for part in parts:
                yield part
        except (HTTPException, StoreError, Stopping) as error:
            yield cut(error)

    return StreamingResponse(all_parts(), 200, _headers(file), type_)


def _headers(file: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{file}"', "Cache-Control": "no-store"}


def _cut_row(error: Exception) -> bytes:
    return _csv([[_missing(error)]])


def _missing(error: Exception) -> str:
    return f"The rest is missing; load the file again. The reason: {problem_of(error).detail}"


def _csv(rows: Rows) -> bytes:
    return csv_table.text(rows).encode(errors="replace")
