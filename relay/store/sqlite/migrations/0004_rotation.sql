-- While a source's secret is rotated, what fits no secret is kept for a while: it may be signed
-- with the new one. Nothing in `quarantine` is verified.

CREATE TABLE rotations (
    source TEXT PRIMARY KEY,
    begun_at INTEGER NOT NULL,
    until INTEGER NOT NULL,                -- requests are kept before this
    expires_at INTEGER NOT NULL,           -- from then on what is still kept is removed
    kept INTEGER NOT NULL DEFAULT 0,
    verified INTEGER NOT NULL DEFAULT 0,   -- of those kept
    duplicates INTEGER NOT NULL DEFAULT 0  -- of those verified
) STRICT, WITHOUT ROWID;

CREATE TABLE quarantine (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT NOT NULL,
    received_at INTEGER NOT NULL,
    size INTEGER NOT NULL,                 -- bytes of what follows
    signature BLOB NOT NULL,               -- the header's value
    headers BLOB NOT NULL,
    body BLOB NOT NULL
) STRICT;

CREATE INDEX quarantine_of_source ON quarantine (source, number, size);
