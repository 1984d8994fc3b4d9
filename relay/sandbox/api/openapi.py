"""The OpenAPI document of the service's API, from the operations that are served."""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from relay.core.openapi import DescribedApi, DescribedOperation
from relay.sandbox.api.error_responses import ErrorAnswer
from relay.sandbox.api.operation import Csv, Operation

PATH = "/v1/openapi.json"

_COMMON = {
    401: "The API key is missing or not valid.",
    422: "A parameter or a field cannot be used; the message names it.",
    429: "The key's limit is exceeded; Retry-After says for how many seconds.",
}
_FORBIDDEN = {403: "The key's access does not suffice."}
_UNKNOWN = {404: "There is nothing with this id."}
_BODY = {400: "The body is not JSON.", 413: "The body, or the file, is too large."}

_API = DescribedApi(
    title="Video service",
    version="1",
    description=(
        "A stand-in of the video service's API. Times are UTC; ids are opaque. A list's `next` is "
        "passed as `after` to get the following page; it is null on the last one."
    ),
    credential="key",
    problem=ErrorAnswer,
)


def routes(operations: Sequence[Operation]) -> list[Route]:
    """Build the route of the document; it needs no key."""
    content = msgspec.json.encode(_API.document([_described(each) for each in operations]))

    async def endpoint(_: Request) -> Response:
        return Response(content, media_type="application/json")

    return [Route(PATH, endpoint)]


def _described(operation: Operation) -> DescribedOperation:
    problems = dict(_COMMON)
    if operation.access != "Read only":
        problems |= _FORBIDDEN
    if "{" in operation.path:
        problems |= _UNKNOWN
    if operation.body is not None:
        problems |= _BODY
    answers: dict[str, Any] = {
        "text/csv" if kind is Csv else "application/json": str if kind is Csv else kind
        for kind in operation.answers
    }
    return DescribedOperation(
        method=operation.method,
        path=operation.path,
        name=operation.handler.__name__,
        summary=operation.summary,
        parameters=operation.parameters,
        body=operation.body,
        answers=answers,
        status=operation.status,
        problems={**problems, **operation.problems},
    )
