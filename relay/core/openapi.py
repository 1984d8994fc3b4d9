"""OpenAPI 3.1 documents, generated from the operations that an API serves."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_SCHEMAS = "#/components/schemas/"


class DescribedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """What a document says of one operation."""

    method: str
    path: str
    name: str
    summary: str
    parameters: type
    """A struct of those in the path and in the query."""
    body: type | None
    """A struct, which refuses unknown names."""
    answers: Mapping[str, type]
    """Types of the answer by media type; empty where it has no content."""
    status: int = 200
    problems: Mapping[int, str]
    """Descriptions of the responses to requests that fail, by status."""

    @property
    def types(self) -> list[type]:
        body = () if self.body is None else (self.body,)
        return [self.parameters, *body, *self.answers.values()]


class DescribedApi(msgspec.Struct, frozen=True, kw_only=True):
    """What a document says of an API as a whole."""

    title: str
    version: str
    description: str
    credential: str
    """Name of the bearer token that every request needs."""
    problem: type
    """The body of every response to a request that fails."""
    problem_type: str = "application/json"

    def document(self, operations: Sequence[DescribedOperation]) -> dict[str, Any]:
        """Build the document; every schema comes from the type that is encoded."""
        types = dict.fromkeys([self.problem, *(kind for each in operations for kind in each.types)])
        template = f"{_SCHEMAS}{{name}}"
        references, components = msgspec.json.schema_components(types, ref_template=template)
        schemas = dict(zip(types, references, strict=True))
        paths: dict[str, Any] = {}
        for operation in operations:
            path = re.sub(r"{(\w+):\w+}", r"{\1}", operation.path)
            described = self._operation(operation, schemas, components)
            paths.setdefault(path, {})[operation.method.lower()] = described
        scheme = {"type": "http", "scheme": "bearer"}
        return {
            "openapi": "3.1.0",
            "info": {
                "title": self.title,
                "version": self.version,
                "description": self.description,
            },
            "security": [{self.credential: []}],
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": {self.credential: scheme}},
        }

    def problems(self, texts: Mapping[int, str]) -> dict[str, Any]:
        """Describe responses to requests that fail, by status."""
        schema = {"$ref": f"{_SCHEMAS}{self.problem.__name__}"}
        content = {self.problem_type: {"schema": schema}}
        return {
            str(status): {"description": text, "content": content}
            for status, text in sorted(texts.items())
        }

    def _operation(
        self,
        operation: DescribedOperation,
        schemas: Mapping[type, Any],
        components: Mapping[str, Any],
    ) -> dict[str, Any]:
        parameters = _component(schemas[operation.parameters], components)
        answers = {media: {"schema": schemas[kind]} for media, kind in operation.answers.items()}
        content = {"content": answers} if answers else {}
        described: dict[str, Any] = {
            "operationId": operation.name,
            "summary": operation.summary,
            "parameters": _parameters(operation.path, parameters),
            "responses": {
                str(operation.status): {"description": operation.summary, **content},
                **self.problems(operation.problems),
            },
        }
        if operation.body is not None:
            schema = schemas[operation.body]
            _component(schema, components)["additionalProperties"] = False
            body = {"application/json": {"schema": schema}}
            described["requestBody"] = {"required": True, "content": body}
        return described


def _component(reference: Mapping[str, str], components: Mapping[str, Any]) -> dict[str, Any]:
    component: dict[str, Any] = components[reference["$ref"].removeprefix(_SCHEMAS)]
    return component


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
