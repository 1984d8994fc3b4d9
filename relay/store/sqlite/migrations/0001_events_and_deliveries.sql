-- An event is written once, with one delivery for every sink whose route took it.
-- Times are milliseconds since the epoch and always come from the relay, never from SQL.

CREATE TABLE events (
    seq INTEGER PRIMARY KEY,               -- order of acceptance
    source TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    created_at TEXT,                       -- the sender's word for it, as received
    received_at INTEGER NOT NULL,
    digest BLOB NOT NULL,                  -- SHA-256 of the body; tells a duplicate from a conflict
    headers BLOB,                          -- as received; gone together with the body
    body BLOB,                             -- as received; NULL once its retention is over
    UNIQUE (source, id)
) STRICT;

CREATE TABLE deliveries (
    event INTEGER NOT NULL REFERENCES events (seq),
    sink TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'delivered', 'dead')),
    attempts INTEGER NOT NULL DEFAULT 0,   -- those that counted; a parked one does not
    due_at INTEGER NOT NULL,
    first_attempt_at INTEGER,
    settled_at INTEGER,
    reason TEXT,                           -- why it is dead, or waits
    PRIMARY KEY (event, sink)
) STRICT, WITHOUT ROWID;

-- What is due next, and what is oldest: a settled delivery leaves both.
CREATE INDEX deliveries_due ON deliveries (sink, due_at, event) WHERE status = 'pending';
CREATE INDEX deliveries_pending ON deliveries (sink, event) WHERE status = 'pending';
CREATE INDEX deliveries_dead ON deliveries (sink, event) WHERE status = 'dead';

CREATE TABLE attempts (
    event INTEGER NOT NULL,
    sink TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    duration_ms INTEGER NOT NULL,
    result TEXT NOT NULL CHECK (result IN ('delivered', 'retry', 'parked', 'dead')),
    status INTEGER,                        -- the destination's own code
    reason TEXT NOT NULL,
    answer TEXT NOT NULL                   -- an excerpt; can hold personal data
) STRICT;

CREATE INDEX attempts_of_delivery ON attempts (event, sink);

-- Verified requests without a usable event in them, kept raw.
CREATE TABLE unreadable (
    source TEXT NOT NULL,
    digest BLOB NOT NULL,
    received_at INTEGER NOT NULL,
    reason TEXT NOT NULL,
    headers BLOB,
    body BLOB,
    PRIMARY KEY (source, digest)
) STRICT;

-- Single values of the relay itself: heartbeat, clean.
CREATE TABLE state (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
