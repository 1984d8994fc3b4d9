"""The OpenAPI 3.1 document, generated from the operations that are served."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from relay.sandbox.api.error_responses import ErrorAnswer
from relay.sandbox.api.operation import Csv, Operation

PATH = "/v1/openapi.json"

_TEMPLATE = "#/components/schemas/{name}"
_COMMON = {
    401: "The API key is missing or not valid.",
    422: "A parameter or a field cannot be used; the message names it.",
    429: "The key's limit is exceeded; Retry-After says for how many seconds.",
}
_FORBIDDEN = {403: "The key's access does not suffice."}
_UNKNOWN = {404: "There is nothing with this id."}
_BODY = {400: "The body is not JSON.", 413: "The body, or the file, is too large."}
_DESCRIPTION = (
    "A stand-in of the video service's API. Times are UTC; ids are opaque. A list's `next` is "
    "passed as `after` to get the following page; it is null on the last one."
)


def routes(operations: Sequence[Operation]) -> list[Route]:
    """Build the route of the document; it needs no key."""
    content = msgspec.json.encode(document(operations))

    async def endpoint(_: Request) -> Response:
        return Response(content, media_type="application/json")

    return [Route(PATH, endpoint)]


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Build the document; every schema comes from the type that is encoded."""
    types = [ErrorAnswer, *(kind for each in operations for kind in _types(each))]
    unique = list(dict.fromkeys(types))
    references, components = msgspec.json.schema_components(unique, ref_template=_TEMPLATE)
    schemas = dict(zip(unique, references, strict=True))
    paths: dict[str, Any] = {}
    for operation in operations:
        description = _operation(operation, schemas, components)
        paths.setdefault(operation.path, {})[operation.method.lower()] = description
    return {
        "openapi": "3.1.0",
        "info": {"title": "Video service", "version": "1", "description": _DESCRIPTION},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(operation: Operation) -> list[Any]:
    answers = [kind for kind in operation.answers if kind is not Csv]
    body = [] if operation.body is None else [operation.body]
    return [operation.parameters, *body, *answers]


def _operation(
    operation: Operation, schemas: Mapping[Any, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    parameters = components[schemas[operation.parameters]["$ref"].rpartition("/")[2]]
    problems = dict(_COMMON)
    if operation.access != "Read only":
        problems |= _FORBIDDEN
    if "{" in operation.path:
        problems |= _UNKNOWN
    if operation.body is not None:
        problems |= _BODY
    problems |= operation.problems
    responses = {
        str(operation.status): _response(operation, schemas),
        **_problems(problems, schemas),
    }
    description: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": operation.summary,
        "parameters": _parameters(operation.path, parameters),
        "responses": responses,
    }
    if operation.body is not None:
        content = {"application/json": {"schema": schemas[operation.body]}}
        description["requestBody"] = {"required": True, "content": content}
    return description


def _response(operation: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "text/csv" if kind is Csv else "application/json": {
            "schema": {"type": "string"} if kind is Csv else schemas[kind]
        }
        for kind in operation.answers
    }
    described = {"description": operation.summary}
    return {**described, "content": content} if content else described


def _parameters(path: str, schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    in_path = set(re.findall(r"{(\w+)", path))
    return [
        {
            "name": name,
            "in": "path" if name in in_path else "query",
            "required": name in schema.get("required", ()),
            "schema": value,
        }
        for name, value in schema.get("properties", {}).items()
    ]


def _problems(texts: Mapping[int, str], schemas: Mapping[Any, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": schemas[ErrorAnswer]}}
    return {
        str(status): {"description": text, "content": content}
        for status, text in sorted(texts.items())
    }
