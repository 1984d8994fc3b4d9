"""Changes by operators, with their origins and results."""

from collections.abc import AsyncIterator, Sequence

import msgspec

from relay.admin.api.audit import AuditQuery, list_changes
from relay.admin.api.parameters import Limit, Number, Text
from relay.admin.page.downloads import Rows
from relay.admin.page.filter_bar import SINCE, UNTIL, Field, Time, filter_bar, moment
from relay.admin.page.text.formats import iso
from relay.admin.page.view import CsvTable, PageView, Section
from relay.admin.page.views.changes.descriptions import OPERATIONS, ChangeRow, change_row
from relay.admin.page.visit import Context, PageVisit

_COLUMNS: Sequence[object] = (
    *("when", "change", "operation", "target", "result", "status", "count", "unit"),
    *("details", "by", "via", "address"),
)


class ChangeFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The filter, with times as people type them."""

    operation: Text | None = None
    since: Time | None = None
    until: Time | None = None

    def page(self, visit: PageVisit, *, before: int | None = None, limit: int = 50) -> AuditQuery:
        """Convert to a page of the API; raises HTTPException."""
        return AuditQuery(
            operation=self.operation,
            since_ms=moment("From", self.since, visit.now_ms),
            until_ms=moment("Until", self.until, visit.now_ms),
            before=before,
            limit=limit,
        )

    @property
    def given(self) -> dict[str, str]:
        values = {"operation": self.operation, "since": self.since, "until": self.until}
        return {name: value for name, value in values.items() if value is not None}


class ChangesPage(ChangeFilter, frozen=True, kw_only=True):
    """One page of the list."""

    before: Number | None = None
    limit: Limit = 50


async def read_changes(visit: PageVisit, page: ChangesPage) -> Context:
    query = page.page(visit, before=page.before, limit=page.limit)
    shown = await visit.page(list_changes, query, rows="changes")
    return {
        "page": page,
        "filters": filter_bar(visit, _fields(page)),
        "changes": [change_row(visit, change) for change in shown.response.changes],
        "rows": shown.attributes,
        "next": shown.response.next,
        "csv": visit.url("/changes.csv", **page.given),
    }


def _fields(chosen: ChangeFilter) -> Sequence[Field]:
    operations = {name: wording.described("…") for name, wording in OPERATIONS.items()}
    return (
        Field(name="operation", label="Change", value=chosen.operation, choices=operations),
        Field(name="since", label="From (UTC)", value=chosen.since, hint=SINCE),
        Field(name="until", label="Until (UTC)", value=chosen.until, hint=UNTIL),
    )


async def read_table(visit: PageVisit, chosen: ChangeFilter) -> AsyncIterator[Rows]:
    """Read all changes that match."""
    heads = [_COLUMNS]
    async for page in visit.pages(list_changes, chosen.page(visit)):
        rows = [_cells(change_row(visit, change), change.operation) for change in page.changes]
        yield heads + rows
        heads = []


def _cells(row: ChangeRow, operation: str) -> Sequence[object]:
    details = "; ".join(f"{name}: {value}" for name, value in row.details)
    what = (iso(row.begun_ms), row.text, operation, row.target, row.state, row.status)
    return (*what, row.count, row.unit, details, row.by, row.via, row.address)


SECTION = Section(
    name="Changes",
    path="/changes",
    key="c",
    routes=(
        PageView("/changes", read_changes, "Changes", "changes.html", topics=("changes",)),
        CsvTable("/changes.csv", read_table, "changes.csv"),
    ),
)
