"""One operation of the API, declared once for its route and for the OpenAPI document."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from inspect import getdoc
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from relay.sandbox.errors import Refusal
from relay.sandbox.faults import Faults
from relay.sandbox.keys import permit
from relay.sandbox.model import Access, Key
from relay.sandbox.services import Services

BODY_MAX = 64 * 1024

Url = Annotated[str, Meta(extra_json_schema={"format": "uri", "pattern": "^https?://[^%]+$"})]

T = TypeVar("T")


class Parameters(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base of an operation's parameters, from the path and the query."""


class Body(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base of a request's body."""


class Csv(str):
    """An answer that is a spreadsheet."""

    __slots__ = ()


class Id(Parameters):
    """The id in a path."""

    id: str


class Call(msgspec.Struct, frozen=True):
    """A request that was let in."""

    services: Services
    key: Key
    base_url: str
    """The URL under which the caller reaches the sandbox, without a slash at its end."""


class Operation(msgspec.Struct, frozen=True):
    """A handler with its method and path; its signature and its docstring describe the rest.

    A handler takes the call, the parameters, and the body if there is one, and returns a
    `Record`, a `Csv`, or None for 204; it raises Refusal.
    """

    method: str
    path: str
    handler: Callable[..., Any]
    access: Access = "Read only"
    """The least access that a key needs."""
    status: int = 200
    problems: Mapping[int, str] = msgspec.field(default_factory=dict)
    """Descriptions of the operation's own refusals, by status."""

    @property
    def summary(self) -> str:
        return (getdoc(self.handler) or "").splitlines()[0]

    @property
    def parameters(self) -> type[Parameters]:
        kind: type[Parameters] = self._types[1]
        return kind

    @property
    def body(self) -> type[Body] | None:
        return self._types[2] if len(self._types) == 4 else None

    @property
    def answers(self) -> tuple[Any, ...]:
        """The types of the answers: none for 204."""
        returned = self._types[-1]
        kinds = get_args(returned) or (returned,)
        return tuple(kind for kind in kinds if kind is not None)

    @property
    def _types(self) -> list[Any]:
        return list(self.handler.__annotations__.values())

    async def respond(self, services: Services, request: Request) -> Response:
        """Run the handler for a request; raises Refusal."""
        key = services.keys.authenticate(request.headers.get("Authorization"))
        services.faults.admit()
        permit(key, self.access)
        call = Call(services, key, str(request.base_url).rstrip("/"))
        answer = self.handler(call, *await self._arguments(request))
        if self.method != "GET":
            services.save()
        await asyncio.sleep(services.faults.slow_s)
        return self._response(answer, services.faults)

    async def _arguments(self, request: Request) -> list[Any]:
        arguments: list[Any] = [_parameters(request, self.parameters)]
        if self.body is not None:
            arguments.append(await _body(request, self.body))
        return arguments

    def _response(self, answer: Any, faults: Faults) -> Response:
        if answer is None:
            return Response(status_code=204)
        if isinstance(answer, Csv):
            return Response(answer.encode(), self.status, media_type="text/csv; charset=utf-8")
        content = msgspec.json.encode(answer)
        if faults.is_lying:
            content = msgspec.json.encode(faults.distort(msgspec.json.decode(content)))
        return Response(content, self.status, media_type="application/json")


class Control(Operation, frozen=True):
    """A control of the sandbox: it needs no key, and no fault concerns it.

    Its handler takes the services in place of the call.
    """

    async def respond(self, services: Services, request: Request) -> Response:
        """Run the handler for a request; raises Refusal."""
        answer = self.handler(services, *await self._arguments(request))
        if self.method != "GET":
            services.save()
        return self._response(answer, Faults(services.schedule.clock))


def routes(operations: Iterable[Operation], services: Services) -> list[Route]:
    """Build one route per path, so that a 405 lists all of its methods."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    # A path with an id would also fit `/v1/videos/import`.
    paths = sorted(by_path, key=lambda path: "{" in path)
    return [_route(path, by_path[path], services) for path in paths]


def _route(path: str, by_method: Mapping[str, Operation], services: Services) -> Route:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await by_method[method].respond(services, request)

    return Route(path, endpoint, methods=list(by_method))


def _parameters(request: Request, kind: type[T]) -> T:
    values: dict[str, Any] = dict(request.path_params)
    for name, value in request.query_params.multi_items():
        if name in values:
            raise Refusal(422, f"{name}: given twice.")
        values[name] = value
    return convert(values, kind, strict=False)


async def _body(request: Request, kind: type[T]) -> T:
    return convert(await read_json(request), kind, strict=True)


async def read_json(request: Request) -> dict[str, Any]:
    """Read a body that is a JSON object; raises Refusal."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > BODY_MAX:
            raise Refusal(413, f"The body is over {BODY_MAX} bytes.")
    try:
        document = msgspec.json.decode(bytes(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refusal(400, "The body is not JSON, or nested too deeply.") from None
    if not isinstance(document, dict):
        raise Refusal(422, "The body is not a JSON object.")
    # JSON makes no difference between 7.0 and 7.
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in document.items()
    }


def convert(values: dict[str, Any], kind: type[T], *, strict: bool) -> T:
    """Build a struct of valid values; raises Refusal. Texts count as numbers if lax."""
    try:
        return msgspec.convert(values, kind, strict=strict)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$.")
        place = where.rstrip("`")
        raise Refusal(422, f"{place}: {text}" if place else text) from None
