"""Error responses of the admin listener: problem details (RFC 9457)."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from relay.core.errors import ConfigError, Fault, Stopping, StoreError


class Problem(msgspec.Struct, omit_defaults=True):
    """Problem details without a `type`: the status identifies the kind."""

    title: str
    status: int
    detail: str = ""
    """The cause and, where it helps, the action."""
    faults: Sequence[Fault] = ()
    """Every fault of a refused config."""


def problem(
    status: int,
    detail: str = "",
    headers: Mapping[str, str] | None = None,
    *,
    faults: Sequence[Fault] = (),
) -> Response:
    """Build a problem response."""
    title = HTTPStatus(status).phrase
    body = Problem(title, status, "" if detail == title else detail, faults)
    return Response(msgspec.json.encode(body), status, headers, "application/problem+json")


def status_of(error: Exception) -> int:
    """Return the status that the handlers below give an error."""
    match error:
        case HTTPException():
            return error.status_code
        case ConfigError():
            return 422
        case StoreError() | Stopping():
            return 503
    return 500


async def on_http_error(_: Request, error: Exception) -> Response:
    """Convert an HTTPException of a route or the router."""
    if not isinstance(error, HTTPException):
        raise error
    return problem(error.status_code, error.detail, error.headers)


async def on_store_error(_: Request, error: Exception) -> Response:
    """Report a store that cannot be read or written now; its error says why."""
    return problem(503, str(error), {"Retry-After": "10"})


async def on_refused_config(_: Request, error: Exception) -> Response:
    """Report every fault of a refused config; the current one stays in use."""
    if not isinstance(error, ConfigError):
        raise error
    return problem(422, "The new config was refused; nothing has changed.", faults=error.faults)


async def on_stopping(_: Request, __: Exception) -> Response:
    """Report that the relay is stopping."""
    return problem(503, "The relay is stopping.", {"Retry-After": "10"})


async def on_bug(_: Request, __: Exception) -> Response:
    """Report a bug, without its text, which may hold secrets."""
    return problem(500, "The relay failed because of a bug; its log has the traceback.")
