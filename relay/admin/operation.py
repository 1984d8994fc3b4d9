"""One operation of the API, declared once for its route and for the API's document."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import getdoc
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import fields
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from relay.admin.audit import Caller, change_of, counts, values_of
from relay.admin.services import AdminServices

FRESH = {"Cache-Control": "no-store"}
BODY_MAX = 64 * 1024
BODY_WAIT_S = 10.0
"""For a whole body: half of one must not hold a connection that scrapers need."""

T = TypeVar("T")
Handler = Callable[..., Awaitable[Any]]


class _Number(Convertor[int]):
    """A number in a path of bounded length: Starlette's own raises on thousands of digits."""

    regex = "[0-9]{1,15}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


class _Digest(Convertor[str]):
    """Hex digits in a path, among which no operation's name can be."""

    regex = "[0-9a-f]{1,64}"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("number", _Number())
register_url_convertor("digest", _Digest())


class Nothing(msgspec.Struct, frozen=True):
    """No parameters."""


class Operation(msgspec.Struct, frozen=True):
    """A handler with its method and path; its signature and its docstring describe the rest.

    A handler takes the services, the parameters from path and query, and the body if there is one,
    and returns the response: each a struct. A bad request is refused before it is called.
    """

    method: str
    path: str
    handler: Handler
    problems: Mapping[int, str] = msgspec.field(default_factory=dict)
    """Descriptions of the error responses, by status."""
    audited: bool | None = None
    """Whether calls are recorded in the audit log; by default those of a POST are."""
    result: Callable[[Any], Mapping[str, Any]] = counts
    """Extracts the audited values of the response; they must hold no personal data."""
    stream: Mapping[str, Any] | None = None
    """Describes a response that is no JSON value; the handler returns it as a `Response`."""

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def summary(self) -> str:
        return getdoc(self.handler) or ""

    @property
    def is_audited(self) -> bool:
        return self.method == "POST" if self.audited is None else self.audited

    @property
    def types(self) -> tuple[Any, Any, Any]:
        """Types of the parameters, of the body and of the JSON response; None without these."""
        kinds = dict(self.handler.__annotations__)
        for name in getattr(self.handler, "__kwdefaults__", None) or ():
            # For callers in the process alone, such as a callback for the progress.
            del kinds[name]
        _, of_parameters, *of_body, of_response = kinds.values()
        return of_parameters, next(iter(of_body), None), None if self.stream else of_response

    async def respond(self, admin: AdminServices, request: Request) -> Response:
        """Run the handler for an API request."""
        of_parameters, of_body, of_response = self.types
        arguments = [parameters(request, of_parameters)]
        if of_body is not None:
            arguments.append(await _body(request, of_body))
        response = await self.run(admin, Caller.of(request), *arguments)
        if of_response is None:
            return cast("Response", response)
        return Response(msgspec.json.encode(response), 200, FRESH, "application/json")

    async def run(
        self, admin: AdminServices, client: Caller, *arguments: object, **more: object
    ) -> Any:
        """Run the handler with valid arguments; a change is audited.

        `more` are its keyword-only parameters, which a request cannot give.
        """
        # A dry run changes nothing, whichever operation it is of.
        is_dry_run = any(getattr(each, "dry_run", False) for each in arguments)
        if is_dry_run or not self.is_audited:
            return await self.handler(admin, *arguments, **more)
        change = change_of(self.name, client, values_of(*arguments), self.path)
        async with admin.auditor.recorded(change) as entry:
            response = await self.handler(admin, *arguments, **more)
            entry.result = self.result(response)
        return response


def routes(operations: Iterable[Operation], admin: AdminServices) -> list[Route]:
    """Build one route per path, so that a 405 lists all of its methods."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    return [_route(path, by_method, admin) for path, by_method in by_path.items()]


def _route(path: str, by_method: Mapping[str, Operation], admin: AdminServices) -> Route:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await by_method[method].respond(admin, request)

    return Route(path, endpoint, methods=list(by_method))


def parameters(request: Request, kind: type[T]) -> T:
    """Read path and query; raises HTTPException for an unknown or invalid parameter."""
    query = request.query_params.multi_items()
    values: dict[str, Any] = dict(request.path_params)
    for name, value in query:
        if name in values:
            raise HTTPException(400, f"{name}: given twice; give it once.")
        values[name] = value
    return convert(values, kind, strict=False)


async def received(request: Request, size_max: int, what: str = "body") -> bytes:
    """Read a whole body; raises HTTPException where it is too large or too slow."""
    raw = bytearray()
    try:
        async with asyncio.timeout(BODY_WAIT_S):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > size_max:
                    raise HTTPException(413, f"The {what} is over {size_max} bytes.")
    except (TimeoutError, ClientDisconnect):
        raise HTTPException(408, f"The {what} did not arrive in time.") from None
    return bytes(raw)


async def _body(request: Request, kind: type[T]) -> T:
    raw = await received(request, BODY_MAX)
    try:
        document = msgspec.json.decode(raw)
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
    return convert(whole, kind, strict=True)


def convert(values: dict[str, Any], kind: type[T], *, strict: bool) -> T:
    """Build a struct of valid values; raises HTTPException. Texts count as numbers if lax."""
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
