"""Inspection of the whole store, and its download for `relay store backup`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from starlette.responses import Response, StreamingResponse

from relay.admin.operation import FRESH, Nothing, Operation
from relay.admin.services import AdminServices
from relay.store.backup import MEDIA_TYPE
from relay.store.integrity import Inspection

CHUNK_BYTES = 1 << 20


async def check_store(admin: AdminServices, _: Nothing) -> Inspection:
    """Read the whole store while the relay runs; returns its contents and faults."""
    return await admin.store.inspections.inspect()


async def backup_store(admin: AdminServices, _: Nothing) -> Response:
    """A consistent copy of the whole store, if its engine makes one."""
    # Sent once it is complete, so that a failed copy is an error response.
    async with AsyncExitStack() as stack:
        file = await stack.enter_async_context(admin.store.backups.copied())
        size = file.stat().st_size
        copy = stack.pop_all()
    headers = FRESH | {"Content-Length": str(size)}
    return StreamingResponse(_chunks(file, copy), 200, headers, MEDIA_TYPE)


async def _chunks(file: Path, copy: AsyncExitStack) -> AsyncIterator[bytes]:
    async with copy, await anyio.open_file(file, "rb") as opened:
        while chunk := await opened.read(CHUNK_BYTES):
            yield chunk


OPERATIONS = (
    Operation("GET", "/api/v1/store/check", check_store),
    Operation(
        "GET",
        "/api/v1/store/backup",
        backup_store,
        audited=True,  # although it is a read, because it hands out all personal data
        result=lambda _: {},
        stream={
            "description": "The copy, with all personal data.",
            "content": {MEDIA_TYPE: {}},
        },
    ),
)
