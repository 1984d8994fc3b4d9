"""Download of the whole store, for `relay store backup`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from relay.admin.audit import Client, change_of
from relay.admin.operation import FRESH
from relay.admin.services import AdminServices
from relay.store.backup import MEDIA_TYPE

PATH = "/api/v1/store/backup"
NAME = "backup_store"
CHUNK_BYTES = 1 << 20

DESCRIPTION = {
    "operationId": NAME,
    "summary": "A consistent copy of the whole store, if its engine makes one.",
    "responses": {
        "200": {
            "description": "The copy, with all personal data.",
            "content": {MEDIA_TYPE: {}},
        },
    },
}


async def back_up(admin: AdminServices, request: Request) -> Response:
    """Send the file once it is complete, so that a failed copy is an error response."""
    # Recorded although it is a read, because it hands out all personal data.
    recorded = admin.auditor.recorded(change_of(NAME, Client.of(request), {}, PATH))
    async with recorded, AsyncExitStack() as stack:
        file = await stack.enter_async_context(admin.store.backups.copied())
        size = file.stat().st_size
        copy = stack.pop_all()
    headers = FRESH | {"Content-Length": str(size)}
    return StreamingResponse(_chunks(file, copy), 200, headers, MEDIA_TYPE)


async def _chunks(file: Path, copy: AsyncExitStack) -> AsyncIterator[bytes]:
    async with copy, await anyio.open_file(file, "rb") as opened:
        while chunk := await opened.read(CHUNK_BYTES):
            yield chunk
