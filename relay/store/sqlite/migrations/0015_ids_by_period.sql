-- Ids are unique by period, 65,536 event numbers: in one index of all ids, each new one would
-- change a page of its own. The relay looks for an id in the older periods before it stores it.

DROP INDEX events_reconstructed;
DROP INDEX events_superseded;

CREATE TABLE events_by_period (
    seq INTEGER PRIMARY KEY,               -- order of acceptance
    source TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    created_at TEXT,                       -- the sender's word for it, as received
    received_at INTEGER NOT NULL,
    digest BLOB NOT NULL,                  -- SHA-256 of the body; tells a duplicate from a conflict
    headers BLOB,                          -- as received; gone together with the body
    body BLOB,                             -- as received; NULL once its retention is over
    -- 0: the sender sent it; 1: made from the sender's API; 2: as 1, and the original has arrived since
    reconstructed INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Before the rows, because a sort of all ids takes as much memory as they do.
CREATE UNIQUE INDEX events_ids ON events_by_period (seq >> 16, source, id);
CREATE INDEX events_reconstructed ON events_by_period (source, id) WHERE reconstructed = 1;
CREATE INDEX events_superseded ON events_by_period (seq) WHERE reconstructed = 2;

INSERT INTO events_by_period
SELECT seq, source, id, kind, created_at, received_at, digest, headers, body, reconstructed
FROM events ORDER BY seq;
DROP TABLE events;
ALTER TABLE events_by_period RENAME TO events;

-- Bloom filters of the ids of full periods, eight in a block. The relay makes missing ones anew.
CREATE TABLE id_filters (
    block INTEGER PRIMARY KEY,             -- 524,288 event numbers
    periods INTEGER NOT NULL,              -- bits: the periods in it that have a filter
    digest BLOB NOT NULL,                  -- keyed, of all of this
    bits BLOB NOT NULL
) STRICT;
