"""Error responses of the admin listener: problem details (RFC 9457)."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from relay.core.errors import ConfigError, Fault, NotReconciled, Stopping, StoreError, StoreLacks


class Problem(msgspec.Struct, omit_defaults=True):
    """Problem details without a `type`: the status identifies the kind."""

    title: str
    status: int
    detail: str = ""
    """The cause and, where it helps, the action."""
    faults: Sequence[Fault] = ()
    """Every fault of a refused config."""


def problem(status: int, detail: str = "", headers: Mapping[str, str] | None = None) -> Response:
    return _response(_problem(status, detail), headers)


def _problem(status: int, detail: str, faults: Sequence[Fault] = ()) -> Problem:
    title = HTTPStatus(status).phrase
    return Problem(title, status, "" if detail == title else detail, faults)


def _response(body: Problem, headers: Mapping[str, str] | None) -> Response:
    return Response(msgspec.json.encode(body), body.status, headers, "application/problem+json")


def problem_of(error: Exception) -> Problem:
    """Describe an error, without a bug's text, which may hold secrets."""
    match error:
        case HTTPException():
            return _problem(error.status_code, error.detail)
        case ConfigError():
            text = "The new config was refused; nothing has changed."
            return _problem(422, text, error.faults)
        case StoreLacks():
            return _problem(501, str(error))
        case StoreError():
            return _problem(503, str(error))
        case NotReconciled():
            return _problem(409, f"Nothing to reconcile: {error}.")
        case Stopping():
            return _problem(503, "The relay is stopping.")
    return _problem(500, "The relay failed because of a bug; its log has the traceback.")


def response_to(error: Exception) -> Response:
    body = problem_of(error)
    if isinstance(error, HTTPException):
        return _response(body, error.headers)
    return _response(body, _RETRY if body.status == 503 else None)


async def on_error(_: Request, error: Exception) -> Response:
    return response_to(error)


HANDLERS = dict.fromkeys(
    (HTTPException, ConfigError, StoreError, NotReconciled, Stopping, Exception), on_error
)
"""Starlette's exception handlers; it looks them up by class."""

_RETRY = {"Retry-After": "10"}
