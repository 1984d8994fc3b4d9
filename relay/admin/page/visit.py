"""One request of the page: who asks, and what views need to answer."""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace
from starlette.exceptions import HTTPException

from relay.admin.api import OPERATIONS
from relay.admin.api.parameters import PAGE_MAX
from relay.admin.audit import Caller
from relay.admin.operation import Handler
from relay.admin.page.access.visitor import Visitor
from relay.admin.page.jobs import Jobs
from relay.admin.page.lists import Held, ListPage, ListReader
from relay.admin.page.result_cache import CachedReads
from relay.admin.services import AdminServices
from relay.core.addresses import ADDRESS, AT
from relay.core.event import KINDS

_OPERATIONS = {operation.handler: operation for operation in OPERATIONS}

MASKED = "(address hidden)"

GROUPS = ("*", *sorted({f"{kind.partition('.')[0]}.*" for kind in KINDS}))
"""Globs of kinds that tell nothing of masked kinds."""

_WILDCARDS = frozenset("*?[")

PERSONAL_FIELDS = frozenset({"email", "person", "words"})
"""Fields of a filter or a request that viewers do not see."""


class PageVisit(msgspec.Struct, frozen=True, kw_only=True):
    """One request; times are milliseconds since the epoch."""

    admin: AdminServices
    visitor: Visitor
    origin: str
    """Scheme, host and port, as the browser sees them."""
    prefix: str
    """Path in front of every URL, empty without a proxy that adds one."""
    path: str
    query: Mapping[str, str]
    now_ms: int
    jobs: Jobs
    slow: CachedReads
    held: Held
    """Lists that keep their rows, because they are in use."""

    @property
    def may_change(self) -> bool:
        """Whether the visitor may change something, and see personal data."""
        return self.visitor.role == "admin"

    @property
    def as_of_ms(self) -> int:
        """Time at which the oldest of the shown results was read."""
        return self.now_ms - self.slow.age_ms

    def require_admin(self, problem: str) -> None:
        """Raise HTTPException for a viewer, with a sentence that says why."""
        if not self.may_change:
            raise HTTPException(403, problem)

    def url(self, path: str, **query: object) -> str:
        """Build the URL of a view; values that are None or empty are left out."""
        values = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self.prefix}{path}{'?' if values else ''}{urlencode(values)}"

    def here(self, **changes: object) -> str:
        """Build the URL of this view with some of its parameters changed."""
        return self.url(self.path, **{**self.query, **changes})

    def text(self, value: str | None) -> str:
        """Hide e-mail addresses from those who may not see personal data."""
        return "" if value is None else value if self.may_change else ADDRESS.sub(MASKED, value)

    def check_filter(self, *texts: str | None) -> None:
        """Refuse a viewer's filter by an address or its part; raises HTTPException.

        Its results would reveal masked addresses.
        """
        if not self.may_change and any(AT.search(text) for text in texts if text):
            raise HTTPException(403, "Viewers cannot filter by address.")

    def check_kind(self, kind: str | None) -> None:
        """Refuse a viewer's glob that could tell masked kinds apart; raises HTTPException."""
        if not self.may_change and kind and _WILDCARDS & set(kind) and kind not in GROUPS:
            known = ", ".join(GROUPS)
            raise HTTPException(403, f"Viewers filter by a whole kind, or by one of: {known}.")

    async def run(self, handler: Handler, *arguments: object, **more: object) -> Any:
        """Run an operation of the API; a change is audited. Raises as the API does."""
        client = Caller(address=self.visitor.address, via="page")
        return await _OPERATIONS[handler].run(self.admin, client, *arguments, **more)

    async def page(
        self, handler: Handler, page: Any, *, rows: str, position: str = "id", name: str = "rows"
    ) -> ListPage:
        """Read one page of an operation's list, or the rows that an open page holds by a name."""
        reader = ListReader(partial(self.run, handler), rows, position)
        return await reader.page(self.held, name, page)

    async def pages(self, handler: Handler, first: Any) -> AsyncIterator[Any]:
        """Yield the responses of an operation that lists something, from this page to the end."""
        page = replace(first, limit=PAGE_MAX)
        while True:
            response = await self.run(handler, page)
            yield response
            if response.next is None:
                return
            page = replace(page, before=response.next)


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an action, shown above the next view."""

    text: str
    tone: Literal["ok", "warn", "bad"] = "ok"


class ActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an action: where to go, and what to say there."""

    to: str | None = None
    """A URL of `PageVisit.url`; by default the page that the form was on."""
    notice: Notice | None = None


Context = Mapping[str, Any]
"""Values for a template."""
