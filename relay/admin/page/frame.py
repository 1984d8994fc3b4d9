"""The frame of a page: navigation, dead letters in it, and the notice of the last action.

A view that has read the dead letters has them in its context as `dead`: a second read could say
another number on the same page.
"""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from relay.admin.page import rendering
from relay.admin.page.notices import Notices
from relay.admin.page.view import View
from relay.admin.page.views import SECTIONS
from relay.admin.page.visit import Notice, Visit
from relay.admin.problem import Problem
from relay.admin.services import AdminServices
from relay.core.errors import StoreError

NOTICE = "done"
"""Parameter that names the notice of the last action."""


class Frame:
    """Renders views in it."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices

    async def show(
        self,
        visit: Visit,
        request: Request,
        view: View,
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
            section=next((each for each in SECTIONS if view in each.views), None),
            sections=SECTIONS,
            notice=self._notices.find(request.query_params.get(NOTICE, "")),
            is_form=request.method == "POST",
            **{**context, "dead": dead},
        )

    async def show_problem(self, visit: Visit, request: Request, problem: Problem) -> Response:
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


async def _nothing(_: Visit, __: object) -> Mapping[str, Any]:
    return {}


FAILED = View(path="", title="Not possible", template="failed.html", read=_nothing)


async def _dead(admin: AdminServices) -> int | None:
    """Count all dead letters; None if the store cannot be read."""
    try:
        return sum(backlog.dead for backlog in (await admin.store.backlogs()).values())
    except StoreError:
        return None
