"""One operation of the API, declared once for its route and for the API's document."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from relay.admin.audit import Auditor, change_of, counts

FRESH = {"Cache-Control": "no-store"}
BODY_MAX = 64 * 1024

T = TypeVar("T")
Handler = Callable[..., Awaitable[Any]]


class _Number(Convertor[int]):
    """A number in a path of bounded length: Starlette's own raises on thousands of digits."""

    regex = "[0-9]{1,15}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())


@dataclass(frozen=True, slots=True)
class Nothing:
    """No parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A handler with the dataclasses that it takes and returns.

    `handler` takes `parameters`, from path and query, then `body` if there is one, and returns
    `response`. A bad request is refused before the handler is called.
    """

    method: str
    path: str
    summary: str
    handler: Handler
    response: Any
    parameters: type = Nothing
    body: type | None = None
    problems: Mapping[int, str] = field(default_factory=dict)
    """Descriptions of the error responses, by status."""
    read_only: bool = False
    """Set for a POST that changes nothing and is therefore not audited."""
    result: Callable[[Any], Mapping[str, Any]] = counts
    """Extracts the audited values of the response; they must hold no personal data."""

    async def respond(self, request: Request, auditor: Auditor) -> Response:
        """Run the handler for a request; a change is audited."""
        arguments: list[object] = [parameters(request, self.parameters)]
        if self.body is not None:
            arguments.append(await _body(request, self.body))
        if self.method == "GET" or self.read_only:
            response = await self.handler(*arguments)
        else:
            async with auditor.recorded(change_of(self.name, request, *arguments)) as entry:
                response = await self.handler(*arguments)
                entry.result = self.result(response)
        return Response(msgspec.json.encode(response), 200, FRESH, "application/json")

    @property
    def name(self) -> str:
        return self.handler.__name__


def routes(operations: Iterable[Operation], auditor: Auditor) -> list[Route]:
    """Build one route per path, so that a 405 lists all of its methods."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    return [_route(path, by_method, auditor) for path, by_method in by_path.items()]


def _route(path: str, by_method: Mapping[str, Operation], auditor: Auditor) -> Route:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await by_method[method].respond(request, auditor)

    return Route(path, endpoint, methods=list(by_method))


def parameters(request: Request, kind: type[T]) -> T:
    """Read path and query; raises HTTPException for an unknown or invalid parameter."""
    query = request.query_params.multi_items()
    values: dict[str, Any] = dict(request.path_params)
    for name, value in query:
        if name in values:
            raise HTTPException(400, f"{name}: given twice; give it once.")
        values[name] = value
    return _convert(values, kind, strict=False)


async def _body(request: Request, kind: type[T]) -> T:
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > BODY_MAX:
            raise HTTPException(413, f"The body is over {BODY_MAX} bytes.")
    try:
        document = msgspec.json.decode(bytes(raw))
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise HTTPException(400, "The body is not JSON.") from None
    except RecursionError:
        raise HTTPException(400, "The body is nested too deeply.") from None
    if not isinstance(document, dict):
        raise HTTPException(400, "The body is not a JSON object.")
    # JSON makes no difference between 7.0 and 7.
    whole = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in document.items()
    }
    return _convert(whole, kind, strict=True)


def _convert(values: dict[str, Any], kind: type[T], *, strict: bool) -> T:
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            names = ", ".join(known) or "none"
            raise HTTPException(400, f"{name[:60]}: unknown parameter; known: {names}")
    try:
        return msgspec.convert(values, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise HTTPException(400, _error_text(error)) from None


def _error_text(error: msgspec.ValidationError) -> str:
    text, _, where = str(error).partition(" - at `$.")
    return f"{where.rstrip('`')}: {text}" if where else text
