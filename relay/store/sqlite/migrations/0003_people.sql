-- A person's data on request: what was erased is written down without the address.

CREATE TABLE keys (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL                    -- random bytes of the relay's own; never leave the store
) STRICT, WITHOUT ROWID;

CREATE TABLE erasures (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    begun_at INTEGER NOT NULL,
    ended_at INTEGER,                      -- NULL: it did not come to its end and is to be repeated
    person BLOB NOT NULL,                  -- HMAC-SHA256 of the case-folded address
    report TEXT                            -- JSON: what was removed, and which sinks had been told
) STRICT;
