"""Answers to requests that fail: `{"error": {"code": ..., "message": ...}}`."""

from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from relay.sandbox.errors import Refusal

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "too_large",
    415: "unsupported_type",
    422: "invalid",
    429: "rate_limited",
}


class ErrorText(msgspec.Struct):
    """What went wrong, for programs and for people."""

    code: str
    message: str


class ErrorAnswer(msgspec.Struct):
    """The body of every answer that is not a 2xx."""

    error: ErrorText


def error_answer(status: int, message: str, *, headers: dict[str, str] | None = None) -> Response:
    """Build the answer to a request that failed."""
    body = ErrorAnswer(ErrorText(CODES.get(status, "error"), message))
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, Refusal):
        raise error
    wait_s = error.retry_after_s
    headers = None if wait_s is None else {"Retry-After": str(wait_s)}
    return error_answer(error.status, error.message, headers=headers)


async def _unroutable(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    text = HTTPStatus(error.status_code).phrase
    headers = None if error.headers is None else dict(error.headers)
    return error_answer(error.status_code, f"{text}.", headers=headers)


HANDLERS = {Refusal: _refused, HTTPException: _unroutable}
"""Starlette's exception handlers; it looks them up by class."""
