-- What operators do to a store: they replay events, discard dead letters, and pause sinks.
-- A settled delivery may come alive again; `replay` says which replay did that, NULL is live.

CREATE TABLE deliveries_with_replay (
    event INTEGER NOT NULL REFERENCES events (seq),
    sink TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'delivered', 'dead', 'discarded')),
    attempts INTEGER NOT NULL DEFAULT 0,   -- those that counted; a parked one does not
    due_at INTEGER NOT NULL,
    first_attempt_at INTEGER,
    settled_at INTEGER,
    reason TEXT,                           -- why it is dead, or waits
    replay INTEGER,
    replayed_from TEXT,                    -- what it was before that replay; NULL: not there
    PRIMARY KEY (event, sink)
) STRICT, WITHOUT ROWID;

INSERT INTO deliveries_with_replay
SELECT event, sink, status, attempts, due_at, first_attempt_at, settled_at, reason, NULL, NULL
FROM deliveries;

DROP TABLE deliveries;
ALTER TABLE deliveries_with_replay RENAME TO deliveries;

-- What is due next, and what is oldest: a settled delivery leaves both. Replays stand behind.
CREATE INDEX deliveries_due ON deliveries (sink, due_at, event)
WHERE status = 'pending' AND replay IS NULL;
CREATE INDEX deliveries_pending ON deliveries (sink, event)
WHERE status = 'pending' AND replay IS NULL;
CREATE INDEX deliveries_replayed ON deliveries (sink, due_at, event, replay)
WHERE status = 'pending' AND replay IS NOT NULL;
CREATE INDEX deliveries_dead ON deliveries (sink, event) WHERE status = 'dead';

ALTER TABLE attempts ADD COLUMN replay INTEGER;

-- A replay walks over the events up to `until` and opens the deliveries that it is for.
CREATE TABLE replays (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at INTEGER NOT NULL,
    selection TEXT NOT NULL,               -- JSON: which events, and which sink
    state TEXT NOT NULL CHECK (state IN ('running', 'done', 'cancelled')),
    total INTEGER NOT NULL,                -- deliveries that it was for when it began
    opened INTEGER NOT NULL DEFAULT 0,
    cursor INTEGER NOT NULL DEFAULT 0,     -- the last event that was looked at
    until INTEGER NOT NULL,                -- the last event there was
    ended_at INTEGER
) STRICT;

CREATE TABLE paused_sinks (
    sink TEXT PRIMARY KEY,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
