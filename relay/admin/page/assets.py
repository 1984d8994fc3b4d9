"""The page's own script and style, named by their content so that browsers may keep them."""

import hashlib
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_KEPT = {"Cache-Control": "private, max-age=31536000, immutable"}


@cache
def _all() -> dict[str, tuple[str, bytes]]:
    """Return type and content of each file, by its name with a digest."""
    named = {}
    for file in (Path(__file__).parent / "assets").iterdir():
        stem, _, kind = file.name.rpartition(".")
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:12]
        named[f"{stem}-{digest}.{kind}"] = (_TYPES[kind], content)
    return named


@cache
def name(file: str) -> str:
    """Return the name of a file with its digest."""
    stem, _, kind = file.rpartition(".")
    return next(each for each in _all() if each.startswith(f"{stem}-") and each.endswith(kind))


async def serve(request: Request) -> Response:
    """Send an asset; these hold nothing that needs a login."""
    if (asset := _all().get(request.path_params["name"])) is None:
        raise HTTPException(404)
    media_type, content = asset
    return Response(content, media_type=media_type, headers=_KEPT)
