"""One thing that the API does: declared once, for its route and for the document of the API."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from relay.admin.audit import Auditor, asked_for, counts

FRESH = {"Cache-Control": "no-store"}
BODY_MAX = 64 * 1024

T = TypeVar("T")
Handler = Callable[..., Awaitable[Any]]


class _Number(Convertor[int]):
    """A number in a path; unlike Starlette's own, none of thousands of digits, which raises."""

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
    """`handler` is given `parameters`, made of path and query, then `body`, and returns `answer`.

    All three are dataclasses; a bad request is answered before the handler is asked.
    """

    method: str
    path: str
    summary: str
    handler: Handler
    answer: Any
    parameters: type = Nothing
    body: type | None = None
    problems: Mapping[int, str] = field(default_factory=dict)
    """What else than the answer may come, by status, and when."""
    only_asks: bool = False
    """A POST that changes nothing, and so leaves no record as every other one does."""
    result: Callable[[Any], Mapping[str, Any]] = counts
    """What of the answer is recorded; it must hold no personal data."""

    async def answered(self, request: Request, auditor: Auditor) -> Response:
        """Do what the request asks; a change is recorded."""
        given: list[object] = [parameters(request, self.parameters)]
        if self.body is not None:
            given.append(await _body(request, self.body))
        if self.method == "GET" or self.only_asks:
            answer = await self.handler(*given)
        else:
            async with auditor.recorded(asked_for(self.name, request, *given)) as entry:
                answer = await self.handler(*given)
                entry.result = self.result(answer)
        return Response(msgspec.json.encode(answer), 200, FRESH, "application/json")

    @property
    def name(self) -> str:
        return self.handler.__name__


def routes(operations: Iterable[Operation], auditor: Auditor) -> list[Route]:
    """One route for each path, so that a method that it lacks is told of all that it has."""
    by_path: dict[str, dict[str, Operation]] = {}
    for each in operations:
        by_path.setdefault(each.path, {})[each.method] = each
    return [_route(path, by_method, auditor) for path, by_method in by_path.items()]


def _route(path: str, by_method: Mapping[str, Operation], auditor: Auditor) -> Route:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await by_method[method].answered(request, auditor)

    return Route(path, endpoint, methods=list(by_method))


def parameters(request: Request, kind: type[T]) -> T:
    """Read path and query; raises HTTPException for what is unknown or wrong."""
    query = request.query_params.multi_items()
    values: dict[str, Any] = dict(request.path_params)
    for name, value in query:
        if name in values:
            raise HTTPException(400, f"{name} is given twice")
        values[name] = value
    return _made(values, kind, strict=False)


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
    # To JSON 7.0 is a whole number.
    whole = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in document.items()
    }
    return _made(whole, kind, strict=True)


def _made(values: dict[str, Any], kind: type[T], *, strict: bool) -> T:
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            known_here = ", ".join(known) or "nothing"
            raise HTTPException(400, f"{name[:60]} is not known here: {known_here}")
    try:
        return msgspec.convert(values, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise HTTPException(400, _complaint(error)) from None


def _complaint(error: msgspec.ValidationError) -> str:
    text, _, where = str(error).partition(" - at `$.")
    return f"{where.rstrip('`')}: {text}" if where else text
