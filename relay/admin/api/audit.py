"""Audit log of operators' changes; short, because each group of operations has a file."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict

from relay.admin.api.parameters import Number, Paging, Text
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.audit import ChangeRecord


class AuditQuery(Paging, frozen=True, kw_only=True):
    """One page of the changes within a time, all or those by one operation."""

    since_ms: Number | None = None
    until_ms: Number | None = None
    operation: Text | None = None
    """Its id in this document."""


class ChangeList(msgspec.Struct, frozen=True, kw_only=True):
    """One page, newest first; e-mail addresses are keyed digests."""

    changes: Sequence[ChangeRecord]
    next: int | None


async def list_changes(admin: AdminServices, page: AuditQuery) -> ChangeList:
    """Changes that operators made or that were refused, newest first."""
    changes = await admin.store.audit.newest(**asdict(page) | {"limit": page.limit + 1})
    shown, more = changes[: page.limit], len(changes) > page.limit
    return ChangeList(changes=shown, next=shown[-1].id if more else None)


OPERATIONS = (Operation("GET", "/api/v1/audit", list_changes),)
