"""How the admin listener says no: problem details (RFC 9457)."""

from collections.abc import Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse


def problem(
    status: int, detail: str = "", headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Say what went wrong in a form that programs and people can read."""
    title = HTTPStatus(status).phrase
    body: dict[str, object] = {"title": title, "status": status}
    if detail and detail != title:
        body["detail"] = detail
    return JSONResponse(body, status, headers, media_type="application/problem+json")


async def on_http_error(_: Request, error: Exception) -> JSONResponse:
    """Turn what a route or the router raised into an answer."""
    if not isinstance(error, HTTPException):
        raise error
    return problem(error.status_code, error.detail, error.headers)


async def on_bug(_: Request, __: Exception) -> JSONResponse:
    """Answer for a mistake of ours; its text stays out of the answer."""
    return problem(500, "The relay failed at this; its log says where.")
