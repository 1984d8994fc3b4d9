"""The page's app: checks who asks, and answers by the view, file or action of a path."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relay.admin.operation import convert
from relay.admin.page import assets, forms, lists, live, login
from relay.admin.page.access.address import EarlyRefusal, own_path
from relay.admin.page.access.control import AccessControl
from relay.admin.page.access.headers import secured
from relay.admin.page.access.visitor import Visitor
from relay.admin.page.downloads import Rows, as_bytes, as_csv, as_json
from relay.admin.page.frame import Frame
from relay.admin.page.jobs import Jobs
from relay.admin.page.result_cache import CachedReads, ResultCache
from relay.admin.page.view import Action, CsvTable, Download, Export, PageRoute, PageView
from relay.admin.page.views import SECTIONS
from relay.admin.page.visit import ActionResult, Notice, PageVisit
from relay.admin.problem import Problem, problem_of
from relay.admin.services import AdminServices
from relay.core.errors import ConfigError, Stopping, StoreError
from relay.server.listener import keep

FRAGMENT = "relay-fragment"
"""Header of the script's requests: `1` for its polls, which do not extend the session; `person` for
a user's action."""

LIVE = "/live"

PERSONAL = "This shows personal data, which is hidden from viewers."

FORM_REFUSED = "This form is not valid any more. Reload the page."

T = TypeVar("T")

Handler = Callable[[PageVisit, Request], Awaitable[Response]]


class PageHandler:
    """Answers the requests for views, actions and downloads."""

    def __init__(self, admin: AdminServices, access: AccessControl) -> None:
        self._admin = admin
        self._access = access
        self._frame = Frame(admin.clock)
        self._jobs = Jobs(admin.activity, admin.clock)
        self._slow = ResultCache(admin.clock)
        self._streams = live.Streams()

    def routes(self) -> list[Route]:
        routes = [Route("/assets/{name}", assets.serve)]
        routes += login.routes(self._access)
        routes.append(Route(LIVE, self._guarded(self._live)))
        handlers: Mapping[type[PageRoute], Callable[[Any], Handler]] = {
            PageView: self._view,
            CsvTable: self._table,
            Download: self._download,
            Export: self._export,
            Action: self._action,
        }
        for each in (route for section in SECTIONS for route in section.routes):
            endpoint = self._guarded(handlers[type(each)](each))
            routes.append(Route(each.path, endpoint, methods=[each.method]))
        routes.append(Route("/{path:path}", self._guarded(_not_found)))
        return routes

    def _guarded(self, answer: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Answer those who may see the page; others get a refusal or the login."""

        async def guarded(request: Request) -> Response:
            if (refusal := self._access.refusal(request)) is not None:
                return await login.refused(request, refusal.status, refusal.text)
            is_stream = self._access.place(request).path == LIVE
            is_poll = is_stream or request.headers.get(FRAGMENT) == "1"
            try:
                visitor = await self._access.visitor(request, active=not is_poll)
            except StoreError as error:
                return await login.refused(request, 503, f"The relay cannot log you in: {error}.")
            if visitor is None:
                by_script = is_stream or FRAGMENT in request.headers
                return await login.required(self._access, request, by_script=by_script)
            keep(request.scope)
            visit = self._visit(request, visitor)
            try:
                return await answer(visit, request)
            except (HTTPException, StoreError, Stopping) as error:
                return await self._frame.show_problem(visit, request, problem_of(error))

        return guarded

    def _visit(self, request: Request, visitor: Visitor) -> PageVisit:
        place = self._access.place(request)
        return PageVisit(
            admin=self._admin,
            visitor=visitor,
            origin=place.origin,
            prefix=place.prefix,
            path=place.path,
            query=forms.query(request),
            now_ms=self._admin.clock.now_ms(),
            jobs=self._jobs,
            slow=CachedReads(self._slow, self._admin.clock),
            held=lists.held_of(request.headers.get(lists.HEADER, "")),
        )

    def _view(self, view: PageView) -> Handler:
        async def answer(visit: PageVisit, request: Request) -> Response:
            if view.admin_only:
                visit.require_admin(PERSONAL)
            context = await view.read(visit, await self._parameters(visit, request, view))
            return await self._frame.show(visit, request, view, context)

        return answer

    async def _parameters(self, visit: PageVisit, request: Request, view: PageView) -> Any:
        if not view.is_form:
            return forms.parameters(request, view.parameters)
        fields = await self._fields(visit, request, is_reading=True)
        return convert({**fields, **request.path_params}, view.parameters, strict=False)

    async def _fields(
        self, visit: PageVisit, request: Request, *, is_reading: bool = False
    ) -> dict[str, str]:
        """Read a form; raises HTTPException if it is forged or forbidden for the role."""
        fields = await forms.form(request)
        check = self._access.check_reading if is_reading else self._access.check_change
        if check(request, visit.visitor, fields.pop("form_token", "")) is not None:
            raise HTTPException(403, FORM_REFUSED)
        return fields

    def _table(self, table: CsvTable) -> Handler:
        async def answer(visit: PageVisit, request: Request) -> Response:
            rows = table.read(visit, forms.parameters(request, table.parameters))
            if request.method == "HEAD":
                rows = _first_rows(rows)
            return await as_csv(
                self._while_authorized(request, rows), table.file, visit.admin.clock
            )

        return answer

    def _download(self, download: Download) -> Handler:
        async def answer(visit: PageVisit, request: Request) -> Response:
            if download.admin_only:
                visit.require_admin(PERSONAL)
            content = await download.read(visit, forms.parameters(request, download.parameters))
            return as_bytes(content, download.file.format(**request.path_params))

        return answer

    def _export(self, export: Export) -> Handler:
        async def answer(visit: PageVisit, request: Request) -> Response:
            fields = await self._fields(visit, request)
            parameters = convert(fields, export.parameters, strict=False)
            parts = export.read(visit, parameters)
            return await as_json(self._while_authorized(request, parts), export.file)

        return answer

    def _action(self, action: Action) -> Handler:
        async def answer(visit: PageVisit, request: Request) -> Response:
            fields = await self._fields(visit, request, is_reading=action.is_reading)
            of_path, of_form = action.types
            try:
                path = convert(dict(request.path_params), of_path, strict=False)
                done = await action.perform(visit, path, convert(fields, of_form, strict=False))
            except (HTTPException, ConfigError, StoreError) as error:
                done = ActionResult(notice=Notice(text=_message(problem_of(error)), tone="bad"))
            if not action.is_reading:
                self._slow.forget()
            to = done.to or _back(visit, request)
            return RedirectResponse(self._frame.with_notice(to, done.notice), 303)

        return answer

    async def _live(self, visit: PageVisit, request: Request) -> Response:
        is_authorized = partial(self._is_still_authorized, request)
        return self._streams.open(visit.admin, visit.visitor.identifier, is_authorized)

    async def _is_still_authorized(self, request: Request) -> bool:
        """Whether the visitor of a long response may still see the page."""
        with suppress(EarlyRefusal, StoreError):
            return await self._access.visitor(request, active=False) is not None
        return False

    async def _while_authorized(
        self, request: Request, parts: AsyncIterator[T]
    ) -> AsyncIterator[T]:
        is_first = True
        async for part in parts:
            if not is_first and not await self._is_still_authorized(request):
                raise HTTPException(401, "The login has ended.")
            is_first = False
            yield part


async def _first_rows(rows: AsyncIterator[Rows]) -> AsyncIterator[Rows]:
    """Yield the first rows of a table, which show whether it can be read."""
    yield await anext(rows)


async def _not_found(_: PageVisit, __: Request) -> Response:
    raise HTTPException(404, "There is no such page.")


def page_app(admin: AdminServices, access: AccessControl) -> ASGIApp:
    """Build the app of the page; without a login, unknown paths look like the others."""
    app = Starlette(routes=PageHandler(admin, access).routes())
    app.router.redirect_slashes = False
    return secured(app, access)


def _message(problem: Problem) -> str:
    faults = "; ".join(map(str, problem.faults))
    return f"{problem.detail} {faults}." if faults else problem.detail


def _back(visit: PageVisit, request: Request) -> str:
    """Return the page that a form was on."""
    try:
        parts = urlsplit(request.headers.get("referer", ""))
    except ValueError:  # of an address in brackets
        return visit.prefix + "/"
    path = parts.path.removeprefix(visit.prefix)
    return visit.prefix + own_path(f"{path}?{parts.query}")
