"""How the admin listener says no: problem details (RFC 9457)."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from relay.core.errors import ConfigError, Fault, Stopping, StoreError


class Problem(msgspec.Struct, omit_defaults=True):
    """RFC 9457, without a `type`: the status says which kind it is."""

    title: str
    status: int
    detail: str = ""
    """What happened, and where it helps, what to do."""
    faults: Sequence[Fault] = ()
    """Every mistake of a config that was refused."""


def problem(
    status: int,
    detail: str = "",
    headers: Mapping[str, str] | None = None,
    *,
    faults: Sequence[Fault] = (),
) -> Response:
    """Say what went wrong in a form that programs and people can read."""
    title = HTTPStatus(status).phrase
    body = Problem(title, status, "" if detail == title else detail, faults)
    return Response(msgspec.json.encode(body), status, headers, "application/problem+json")


def status_of(error: Exception) -> int:
    """The status by which the handlers below answer an error."""
    match error:
        case HTTPException():
            return error.status_code
        case ConfigError():
            return 422
        case StoreError() | Stopping():
            return 503
    return 500


async def on_http_error(_: Request, error: Exception) -> Response:
    """Turn what a route or the router raised into an answer."""
    if not isinstance(error, HTTPException):
        raise error
    return problem(error.status_code, error.detail, error.headers)


async def on_store_error(_: Request, error: Exception) -> Response:
    """Answer for a store that cannot be read or written now; its own words say why."""
    return problem(503, str(error), {"Retry-After": "10"})


async def on_refused_config(_: Request, error: Exception) -> Response:
    """Answer with every fault of a config; the one in use goes on."""
    if not isinstance(error, ConfigError):
        raise error
    return problem(422, "The new config was refused; nothing has changed.", faults=error.faults)


async def on_stopping(_: Request, __: Exception) -> Response:
    """Answer for a relay that is about to end."""
    return problem(503, "The relay is stopping.", {"Retry-After": "10"})


async def on_bug(_: Request, __: Exception) -> Response:
    """Answer for a mistake of ours; its text stays out of the answer."""
    return problem(500, "The relay failed at this; its log says where.")
