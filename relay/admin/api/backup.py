"""The whole store as a file, for `relay store backup`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from starlette.responses import Response, StreamingResponse

from relay.admin.operation import FRESH
from relay.store.backup import Backups

PATH = "/api/v1/store/backup"
NAME = "backup_store"
CHUNK = 1 << 20

DESCRIPTION = {
    "operationId": NAME,
    "summary": "A copy of the whole store as it is now: an SQLite database.",
    "responses": {
        "200": {
            "description": "It holds all that the relay knows, personal data too.",
            "content": {"application/vnd.sqlite3": {}},
        },
    },
}


async def backup(backups: Backups) -> Response:
    """Answer with the file once it is whole, so that a copy that fails is no answer at all."""
    async with AsyncExitStack() as made:
        file = await made.enter_async_context(backups.copied())
        size = file.stat().st_size
        kept = made.pop_all()
    headers = FRESH | {"Content-Length": str(size)}
    return StreamingResponse(_chunks(file, kept), 200, headers, "application/vnd.sqlite3")


async def _chunks(file: Path, kept: AsyncExitStack) -> AsyncIterator[bytes]:
    async with kept, await anyio.open_file(file, "rb") as opened:
        while chunk := await opened.read(CHUNK):
            yield chunk
