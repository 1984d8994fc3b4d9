"""The list of changes: which, when, by whom, with which result."""

from collections.abc import Sequence
from dataclasses import dataclass

from relay.admin.api.parameters import Number, Paging
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.audit import ChangeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Paging):
    """A part of the changes since then."""

    since_ms: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeList:
    """One page, the newest first; an e-mail address stands in it as a keyed digest."""

    changes: Sequence[ChangeRecord]
    next: int | None


def operations(admin: AdminServices) -> tuple[Operation, ...]:
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
