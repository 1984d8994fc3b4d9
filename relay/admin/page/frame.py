"""The frame of a page: navigation, dead letters in it, and the notice of the last action.

A view that has read the dead letters has them in its context as `dead`: a second read could say
another number on the same page.
"""

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from relay.admin.page import rendering
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
        return await rendering.page(
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
