"""Renders templates in a worker thread, because the event loop acknowledges requests."""

import asyncio
import gzip
from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.requests import Request
from starlette.responses import Response

from relay.admin.page import assets, charts
from relay.admin.page.text import formats

LEVEL = 5
"""Of compression: 0.3 ms for a list of 100 rows."""

COMPRESSED_MIN = 1024


async def page(request: Request, template: str, status: int = 200, /, **context: Any) -> Response:
    """Render a template as an HTML response."""
    text = await asyncio.to_thread(_rendered, template, context, packed=_takes_gzip(request))
    response = Response(text, status, media_type="text/html")
    if _takes_gzip(request) and text[:2] == b"\x1f\x8b":
        response.headers["Content-Encoding"] = "gzip"
    response.headers["Vary"] = "Accept-Encoding, Cookie"
    return response


def _rendered(template: str, context: Mapping[str, Any], *, packed: bool) -> bytes:
    text = environment().get_template(template).render(context).encode(errors="replace")
    return gzip.compress(text, LEVEL) if packed and len(text) >= COMPRESSED_MIN else text


@cache
def environment() -> Environment:
    """Return the templates' environment; every value is escaped."""
    built = Environment(
        loader=PackageLoader("relay.admin.page"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    built.filters |= formats.FILTERS
    built.globals |= {"asset": assets.name, **charts.GLOBALS}
    return built


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")
