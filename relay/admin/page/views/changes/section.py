"""Changes by operators, with their origins and results."""

from collections.abc import Sequence
from dataclasses import dataclass

from relay.admin.api.audit import ChangeList, Page, list_changes
from relay.admin.api.parameters import Limit, Number, Text
from relay.admin.page.text.formats import iso
from relay.admin.page.text.moments import Time, moment
from relay.admin.page.view import Download, Section, View
from relay.admin.page.views.changes.words import OPERATIONS, ChangeRow, change_row
from relay.admin.page.visit import Context, Visit

CSV_PAGES_MAX = 10
"""Pages of a file, so that it ends at 5,000 rows; older ones take a filter by time."""

_COLUMNS: Sequence[object] = (
    *("when", "change", "operation", "target", "state", "status", "count", "counted"),
    *("details", "by", "via", "address"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The filter, with times as people type them."""

    operation: Text | None = None
    since: Time | None = None
    until: Time | None = None

    def page(self, visit: Visit, *, before: int | None = None, limit: int = 50) -> Page:
        """Convert to a page of the API; raises HTTPException."""
        return Page(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPage(Chosen):
    """One page of the list."""

    before: Number | None = None
    limit: Limit = 50


async def read_changes(visit: Visit, chosen: ChosenPage) -> Context:
    """Read one page of the list."""
    page = chosen.page(visit, before=chosen.before, limit=chosen.limit)
    found: ChangeList = await visit.run(list_changes, page)
    return {
        "chosen": chosen,
        "rows": [change_row(visit, change) for change in found.changes],
        "next": found.next,
        "operations": {name: words.plain.format("…") for name, words in OPERATIONS.items()},
        "csv": visit.url("/changes.csv", **chosen.given),
    }


async def read_file(visit: Visit, chosen: Chosen) -> Sequence[Sequence[object]]:
    """Read the newest changes that match."""
    rows = [_COLUMNS]
    async for page in visit.pages(list_changes, chosen.page(visit), pages_max=CSV_PAGES_MAX):
        rows += [_cells(change_row(visit, change), change.operation) for change in page.changes]
    return rows


def _cells(row: ChangeRow, operation: str) -> Sequence[object]:
    details = "; ".join(f"{name}: {value}" for name, value in row.details)
    what = (iso(row.begun_ms), row.text, operation, row.target, row.state, row.status)
    return (*what, row.count, row.unit, details, row.by, row.via, row.address)


SECTION = Section(
    name="Changes",
    path="/changes",
    key="c",
    views=(
        View(
            path="/changes",
            title="Changes",
            template="changes.html",
            read=read_changes,
            topics=("changes",),
        ),
    ),
    downloads=(Download(path="/changes.csv", file="changes.csv", read=read_file),),
)
