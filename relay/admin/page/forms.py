"""Fields of forms and parameters of views, as structs."""

import asyncio
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from relay.admin.operation import convert, received

FORM_MAX = 256 * 1024
"""Bytes of a form; an event to try is pasted into one."""

SMALL_MAX = 8 * 1024
"""Maximum size in bytes of a form without a login: larger ones take long to decode."""

FIELDS_MAX = 100

OWN = frozenset({"again", "done"})
"""Parameters of the page itself."""


async def form(request: Request, *, size_max: int = FORM_MAX) -> dict[str, str]:
    """Read a form's fields without the empty ones; raises HTTPException."""
    raw = await received(request, size_max, "form")
    if len(raw) <= SMALL_MAX:
        return _fields(raw)
    # In a thread, because a tenth of a second would delay acknowledgements.
    return await asyncio.to_thread(_fields, raw)


def _fields(raw: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(raw.decode(errors="replace"), max_num_fields=FIELDS_MAX)
    except ValueError:
        raise HTTPException(400, f"The form has more than {FIELDS_MAX} fields.") from None
    return {name: value for name, value in pairs if value}


def query(request: Request) -> dict[str, str]:
    """Return the parameters of a view that are not empty; of repeated ones, the last."""
    pairs = request.query_params.multi_items()
    return {name: value for name, value in pairs if value and name not in OWN}


def parameters(request: Request, kind: Any) -> Any:
    """Read path and query; raises HTTPException."""
    return convert({**query(request), **request.path_params}, kind, strict=False)
