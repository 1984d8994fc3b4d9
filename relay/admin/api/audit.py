"""The list of changes: which, when, by whom, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from relay.admin.api.values import PAGE_MAX, Number
from relay.admin.control import Admin
from relay.admin.operation import Operation
from relay.store.audit import ChangeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Since when, how far, and how many."""

    since_ms: Number | None = None
    before: Number | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeList:
    """One page, the newest first; an e-mail address stands in it as a keyed digest."""

    changes: Sequence[ChangeRecord]
    next: int | None


def operations(admin: Admin) -> tuple[Operation, ...]:
    """What can be asked of changes."""

    async def list_changes(page: Page) -> ChangeList:
        found = await admin.audit.newest(
            before=page.before, since_ms=page.since_ms, limit=page.limit
        )
        return ChangeList(changes=found, next=found[-1].id if len(found) == page.limit else None)

    return (
        Operation(
            method="GET",
            path="/api/v1/audit",
            summary="The changes that operators made, refused ones among them, the newest first.",
            handler=list_changes,
            parameters=Page,
            answer=ChangeList,
        ),
    )
