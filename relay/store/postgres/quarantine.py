"""Keeping of unverified requests in PostgreSQL: those that come at once share a statement."""

from collections.abc import Sequence

from relay.core.authentication import UnverifiedRequest
from relay.store.postgres.driver import Query, Steps
from relay.store.postgres.shared import PostgresRepository
from relay.store.quarantine import Quarantine

_KEEP = """
WITH kept AS (
    INSERT INTO relay.quarantine (number, source, received_at, size, signature, headers, body)
    OVERRIDING SYSTEM VALUE
    SELECT * FROM unnest(
        %(number)b::bigint[], %(source)b::text[], %(received_at)b::bigint[], %(size)b::bigint[],
        %(signature)b::bytea[], %(headers)b::bytea[], %(body)b::bytea[]
    )
    ON CONFLICT (number) DO NOTHING RETURNING source
), counted AS (SELECT source, count(*) AS number FROM kept GROUP BY source)
UPDATE relay.rotations AS r SET kept = kept + counted.number
FROM counted WHERE r.source = counted.source
"""


class PostgresQuarantine(PostgresRepository, Quarantine):
    """Counts what it keeps."""

    async def keep(self, request: UnverifiedRequest) -> None:
        number = await self._shared.draw("quarantine", "number")
        await self._writer.submit(_keep, (number, request))


def _keep(requests: Sequence[tuple[int, UnverifiedRequest]]) -> Steps[Sequence[None]]:
    kept = [request for _, request in requests]
    yield Query(
        _KEEP,
        {
            "number": [number for number, _ in requests],
            "source": [each.source for each in kept],
            "received_at": [each.received_ms for each in kept],
            "size": [each.size for each in kept],
            "signature": [each.signature for each in kept],
            "headers": [each.headers for each in kept],
            "body": [each.body for each in kept],
        },
    )
    return [None] * len(requests)
