"""OpenAPI document of the API, from the operations that it serves."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import fields

from relay import __version__
from relay.admin.operation import Operation
from relay.admin.problem import Problem
from relay.core.openapi import DescribedApi, DescribedOperation

_COMMON_PROBLEMS = {
    401: "The bearer token is missing or wrong.",
    429: "Too many wrong tokens; retry later.",
    500: "The relay failed because of a bug; its log has the traceback.",
    503: "The store cannot be read or written now.",
}
_INPUT_PROBLEMS = {400: "A parameter or the body is invalid; the detail names it."}
_BODY_PROBLEMS = {413: "The body is too large."}

_API = DescribedApi(
    title="relay",
    version=__version__,
    description=(
        "Admin API of a running relay, as its commands use it. Times are milliseconds since the "
        "epoch. Lists are newest first; pass a page's `next` as `before` to get the following page."
    ),
    credential="token",
    problem=Problem,
    problem_type="application/problem+json",
)


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Build the document."""
    built = _API.document([_described(operation) for operation in operations])
    for operation in operations:
        if operation.stream is not None:
            described = built["paths"][operation.path][operation.method.lower()]
            described["responses"]["200"] = operation.stream
    return built


def _described(operation: Operation) -> DescribedOperation:
    of_parameters, of_body, of_answer = operation.types
    problems = dict(_COMMON_PROBLEMS)
    if of_body is not None or fields(of_parameters):
        problems |= _INPUT_PROBLEMS
    if of_body is not None:
        problems |= _BODY_PROBLEMS
    return DescribedOperation(
        method=operation.method,
        path=operation.path,
        name=operation.name,
        summary=operation.summary,
        parameters=of_parameters,
        body=of_body,
        answers={} if of_answer is None else {"application/json": of_answer},
        problems={**problems, **operation.problems},
    )
