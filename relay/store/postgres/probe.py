"""A whole acceptance that is taken back: tells whether events can be stored, and stores none.

It is one statement, as an acceptance is, so that no lock is held over a round trip. Its block with
an exception is a savepoint: what it inserts, counts and locks is gone when the row is written.
"""

import re
from collections.abc import Sequence
from functools import cache

from relay.store.postgres import accept
from relay.store.postgres.driver import Query, Steps

_NOW = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_DIGEST = "sha256('')"

# No sender can have this source; the id differs, so that no relay waits for another's probe.
_ARRIVAL = {
    "source": "''",
    "id": "gen_random_uuid()::text",
    "kind": "'probe'",
    "created_at": "NULL",
    "received_at": _NOW,
    "digest": _DIGEST,
    "headers": "''",
    "body": "convert_to(repeat('.', {size}), 'UTF8')",
    "known_kind": "'other'",
    "milestone": "''",
    "place": "1",
    "sink": "''",
    "turn": "NULL",
    "why": "NULL",
}
"""By the names of `accept.ADD`; the text stays the same, so that the server counts it as one."""

_PROBE = """
DO $probe$
BEGIN
    BEGIN
        EXECUTE $accept$ {add} $accept$;
        RAISE EXCEPTION USING errcode = 'RELAY';
    EXCEPTION WHEN SQLSTATE 'RELAY' THEN
        NULL;
    END;
    INSERT INTO relay.state (name, value) VALUES ('probed', {now})
    ON CONFLICT (name) DO UPDATE SET value = excluded.value;
END
$probe$
"""


def probe(sizes: Sequence[int]) -> Steps[Sequence[None]]:
    """Accept an event with a body of the largest size, take it back, and commit a row."""
    yield Query(_text(1 << (max(sizes) - 1).bit_length()))
    return [None] * len(sizes)


@cache
def _text(size: int) -> str:
    def value(name: re.Match[str]) -> str:
        return f"ARRAY[{_ARRIVAL[name[1]].format(size=size)}]"

    return _PROBE.format(add=re.sub(r"%\((\w+)\)b", value, accept.ADD), now=_NOW)
