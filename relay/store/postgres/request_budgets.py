"""Budgets of requests to the sender's API, which the relays of a store share out in blocks."""

from collections.abc import Sequence
from typing import Any

from relay.core.request_budget import BURST, SHARED_INTERVAL_S, Grant
from relay.store.postgres.driver import Query, Steps
from relay.store.postgres.shared import PostgresRepository

_NOW = "statement_timestamp()"
_ONE = f"make_interval(secs => {SHARED_INTERVAL_S})"
_BURST = f"make_interval(secs => {BURST * SHARED_INTERVAL_S})"
# A later time is from before the server's clock was set back.
_FULL_AT = f"""
CASE WHEN b.full_at BETWEEN {_NOW} AND {_NOW} + {_BURST} THEN b.full_at ELSE {_NOW} END
"""
_GRANTED = f"""
CASE WHEN b.paused_until > {_NOW} THEN 0 ELSE least(
    %(most)s, floor(extract(epoch FROM {_NOW} + {_BURST} - {_FULL_AT}) / {SHARED_INTERVAL_S})
)::integer END
"""
_TAKE = f"""
INSERT INTO relay.request_budgets AS b (key, full_at, granted)
VALUES (%(key)s, {_NOW} + %(most)s * {_ONE}, %(most)s)
ON CONFLICT (key) DO UPDATE
SET granted = {_GRANTED}, full_at = {_FULL_AT} + {_GRANTED} * {_ONE}
RETURNING granted,
    extract(epoch FROM full_at + {_ONE} - {_NOW} - {_BURST})::float8,
    extract(epoch FROM paused_until - {_NOW})::float8
"""
_PAUSE = f"""
INSERT INTO relay.request_budgets AS b (key, full_at, granted, paused_until)
VALUES (%(key)s, {_NOW}, 0, {_NOW} + make_interval(secs => %(seconds)s))
ON CONFLICT (key) DO UPDATE SET paused_until = greatest(b.paused_until, excluded.paused_until)
"""


class PostgresRequestBudgets(PostgresRepository):
    """Fulfils `relay.core.request_budget.RequestBudgets`."""

    async def take(self, key: str, *, most: int) -> Grant:
        return await self._writer.submit(_take, {"key": self._digest(key), "most": most})

    async def pause(self, key: str, seconds: float) -> None:
        await self._writer.submit(_pause, {"key": self._digest(key), "seconds": seconds})

    def _digest(self, key: str) -> bytes:
        return self._shared.tokens.digest(key)


def _take(batch: Sequence[dict[str, Any]]) -> Steps[Sequence[Grant]]:
    grants = []
    for values in batch:
        ((requests, wait_s, paused_s),) = yield Query(_TAKE, values)
        grants.append(Grant(requests, max(wait_s, 0.0), max(paused_s, 0.0)))
    return grants


def _pause(batch: Sequence[dict[str, Any]]) -> Steps[Sequence[None]]:
    for values in batch:
        yield Query(_PAUSE, values)
    return [None] * len(batch)
