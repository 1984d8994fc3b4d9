"""Rendering, and the frame of a page: navigation, its dead letters, and the last action's notice.

A view that has read the dead letters has them in its context as `dead`: a second read could say
another number on the same page.
Templates are rendered in a worker thread, because the event loop acknowledges requests.
"""

import asyncio
import gzip
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.requests import Request
from starlette.responses import Response

from relay.admin.page import assets, charts
from relay.admin.page.text import formats
from relay.admin.page.view import PageView
from relay.admin.page.views import SECTIONS
from relay.admin.page.visit import Notice, PageVisit
from relay.admin.problem import Problem
from relay.admin.services import AdminServices
from relay.core.clock import Clock
from relay.core.errors import StoreError

NOTICES_MAX = 200

NOTICE_SHOWN_S = 60.0
"""Time for which an open page that refreshes shows its notice."""


class _KeptNotice(NamedTuple):
    notice: Notice
    until_s: float


class Notices:
    """Keeps the latest results of actions in memory, by a random id that stands in the next URL."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._notices: OrderedDict[str, _KeptNotice] = OrderedDict()

    def add(self, notice: Notice) -> str:
        """Keep a notice and return its id."""
        identifier = secrets.token_urlsafe(9)
        self._notices[identifier] = _KeptNotice(notice, self._clock.monotonic() + NOTICE_SHOWN_S)
        if len(self._notices) > NOTICES_MAX:
            self._notices.popitem(last=False)
        return identifier

    def find(self, identifier: str) -> Notice | None:
        """Return a notice; None if its time is over."""
        kept = self._notices.get(identifier)
        return kept.notice if kept and self._clock.monotonic() < kept.until_s else None


NOTICE = "done"
"""Parameter that names the notice of the last action."""


class Frame:
    """Renders views in it."""

    def __init__(self, clock: Clock) -> None:
        self._notices = Notices(clock)

    async def show(
        self,
        visit: PageVisit,
        request: Request,
        view: PageView,
        context: Mapping[str, Any],
        *,
        status: int = 200,
    ) -> Response:
        """Render a view with its context."""
        dead = context["dead"] if "dead" in context else await _dead(visit.admin)
        return await render(
            request,
            view.template,
            status,
            visit=visit,
            view=view,
            section=next((each for each in SECTIONS if view in each.routes), None),
            sections=SECTIONS,
            notice=self._notices.find(request.query_params.get(NOTICE, "")),
            is_form=request.method == "POST",
            **{**context, "dead": dead},
        )

    async def show_problem(self, visit: PageVisit, request: Request, problem: Problem) -> Response:
        """Render the page that says why a request failed."""
        context = {"problem": problem}
        return await self.show(visit, request, FAILED, context, status=problem.status)

    def with_notice(self, url: str, notice: Notice | None) -> str:
        """Return the URL that shows a notice above its view."""
        if notice is None:
            return url
        path, _, query = url.partition("?")
        mark = f"{NOTICE}="
        kept = [each for each in query.split("&") if each and not each.startswith(mark)]
        return f"{path}?{'&'.join([*kept, mark + self._notices.add(notice)])}"


async def _nothing(_: PageVisit, __: object) -> Mapping[str, Any]:
    return {}


FAILED = PageView("", _nothing, "Not possible", "failed.html")


async def _dead(admin: AdminServices) -> int | None:
    """Count all dead letters; None if the store cannot be read."""
    try:
        return sum(backlog.dead for backlog in (await admin.store.backlogs()).values())
    except StoreError:
        return None


LEVEL = 5
"""Of compression: 0.3 ms for a list of 100 rows."""

COMPRESSED_MIN = 1024


async def render(request: Request, template: str, status: int = 200, /, **context: Any) -> Response:
    """Render a template as an HTML response."""
    text = await asyncio.to_thread(_rendered, template, context, packed=_takes_gzip(request))
    response = Response(text, status, media_type="text/html")
    if _takes_gzip(request) and text[:2] == b"\x1f\x8b":
        response.headers["Content-Encoding"] = "gzip"
    response.headers["Vary"] = "Accept-Encoding, Cookie"
    return response


def _rendered(template: str, context: Mapping[str, Any], *, packed: bool) -> bytes:
    text = environment().get_template(template).render(context).encode(errors="replace")
    return gzip.compress(text, LEVEL) if packed and len(text) >= COMPRESSED_MIN else text


@cache
def environment() -> Environment:
    """Return the templates' environment; every value is escaped."""
    built = Environment(
        loader=PackageLoader("relay.admin.page"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    built.filters |= formats.FILTERS
    built.globals |= {"asset": assets.name, **charts.GLOBALS}
    return built


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")
