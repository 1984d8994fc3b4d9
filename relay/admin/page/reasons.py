"""Reasons of dead letters as filters: the part of one that may stand in a URL."""

from starlette.exceptions import HTTPException

from relay.admin.api.dead_letters import count_dead_letters
from relay.admin.api.parameters import Filter
from relay.admin.page.visit import Visit
from relay.core.addresses import ADDRESS

REASON_MAX = 300
"""Characters of a reason that stand in a URL; as a filter, a part of it selects as well."""


def shown_part(reason: str) -> str | None:
    """Return the beginning of a reason without any address, which must not stand in a URL."""
    match = ADDRESS.search(reason)
    return reason[: match.start() if match else REASON_MAX][:REASON_MAX].strip() or None


async def check_reason(visit: Visit, reason: str | None) -> None:
    """Refuse a viewer's filter by what no cause shows; raises HTTPException.

    Letter by letter, a viewer could spell out an address that is hidden in a reason.
    """
    if reason is None or visit.may_change:
        return
    reasons = (await visit.run(count_dead_letters, Filter())).reasons
    if not any(reason in visit.text(each.reason) for each in reasons):
        raise HTTPException(403, "No cause of dead letters that viewers see contains this.")
