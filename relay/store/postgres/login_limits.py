"""Limits of wrong tokens in PostgreSQL, where a try on one relay counts on all."""

import math
from typing import Any

from relay.core.clock import Clock
from relay.store.login_limits import (
    ADDRESSES_MAX,
    TOTAL_BURST,
    TOTAL_INTERVAL_S,
    TOTAL_WAIT_S,
    TRIES,
    TRY_AGAIN_S,
    site,
)
from relay.store.postgres.driver import Database
from relay.store.postgres.shared import Part, Shared

_TRY_MS = int(TRY_AGAIN_S * 1000)
_TOTAL_MS = int(TOTAL_INTERVAL_S * 1000)
_TOTAL = "*"
"""In place of an address: those of all addresses."""

SKEW_MS = 60_000
"""Time by which another relay's clock may be ahead; later times are from before a set-back."""

# The condition and the change are one statement, or tries at the same moment would all pass.
_TAKE = """
INSERT INTO relay.login_tries AS t (site, free_at)
VALUES (%(site)s, %(now)s::bigint + %(step)s)
ON CONFLICT (site) DO UPDATE SET free_at = %(step)s +
    CASE WHEN t.free_at BETWEEN %(now)s AND %(far)s THEN t.free_at ELSE %(now)s END
WHERE t.free_at <= %(now)s::bigint + %(burst)s OR t.free_at > %(far)s
RETURNING free_at
"""
_FREE_AT = "SELECT free_at FROM relay.login_tries WHERE site = %(site)s"
_PUT_BACK = "UPDATE relay.login_tries SET free_at = free_at - %s WHERE site = %s"
_FORGET = """
DELETE FROM relay.login_tries WHERE site IN (
    SELECT site FROM relay.login_tries
    WHERE site <> %(site)s AND (free_at <= %(now)s OR site = ANY(ARRAY(
        SELECT site FROM relay.login_tries ORDER BY free_at DESC OFFSET %(addresses)s
    ))) FOR UPDATE SKIP LOCKED
)
"""


class PostgresLoginLimits(Part):
    """Fulfils `relay.store.login_limits.LoginLimits`."""

    def __init__(self, shared: Shared, clock: Clock) -> None:
        super().__init__(shared)
        self._clock = clock

    async def take(self, address: str | None) -> int:
        free_at_ms = await self._take(site(address), step_ms=_TRY_MS, tries=TRIES)
        if free_at_ms is None:
            return 0
        late_ms = free_at_ms - (TRIES - 1) * _TRY_MS - self._clock.now_ms()
        return max(1, math.ceil(late_ms / 1000))

    async def put_back(self, address: str | None) -> None:
        await self._shared.background.execute(_PUT_BACK, _TRY_MS, site(address))

    async def failed(self) -> int:
        free_at_ms = await self._take(_TOTAL, step_ms=_TOTAL_MS, tries=TOTAL_BURST)
        return 0 if free_at_ms is None else TOTAL_WAIT_S

    async def _take(self, place: str, *, step_ms: int, tries: int) -> int | None:
        """Take a try; if none is left, return when all are free again."""
        now_ms = self._clock.now_ms()
        values = {
            "site": place,
            "now": now_ms,
            "step": step_ms,
            "burst": (tries - 1) * step_ms,
            "far": now_ms + tries * step_ms + SKEW_MS,
            "addresses": ADDRESSES_MAX,
        }
        return await self._shared.background.transact(lambda db: _take(db, values))


def _take(db: Database, values: dict[str, Any]) -> int | None:
    taken = db.execute(_TAKE, values).fetchone()
    if taken is None:
        row = db.execute(_FREE_AT, values).fetchone()
        return None if row is None else int(row[0])
    if values["site"] == _TOTAL:
        db.execute(_FORGET, values)
    return None
