-- No event writes an index of ids: each new id is random and would change a page of its own. The
-- relay keeps the newest ones in memory, and writes those of a full period, 32,768 event numbers,
-- in order.

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

CREATE INDEX events_reconstructed ON events_by_period (source, id) WHERE reconstructed = 1;
CREATE INDEX events_superseded ON events_by_period (seq) WHERE reconstructed = 2;

INSERT INTO events_by_period
SELECT seq, source, id, kind, created_at, received_at, digest, headers, body, reconstructed
FROM events ORDER BY seq;
DROP TABLE events;
ALTER TABLE events_by_period RENAME TO events;

CREATE TABLE ids (
    period INTEGER NOT NULL,               -- of the event: seq >> 15
    source TEXT NOT NULL,
    id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (period, source, id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER ids_removed AFTER DELETE ON events BEGIN
    DELETE FROM ids
    WHERE period = OLD.seq >> 15 AND source = OLD.source AND id = OLD.id AND seq = OLD.seq;
END;
CREATE TRIGGER ids_changed AFTER UPDATE OF id ON events BEGIN
    UPDATE ids SET id = NEW.id
    WHERE period = OLD.seq >> 15 AND source = OLD.source AND id = OLD.id AND seq = OLD.seq;
END;

-- The first event whose id may be missing in `ids`; none before a period is full.
INSERT INTO state SELECT 'indexed', max(seq) >> 15 << 15 FROM events HAVING max(seq) IS NOT NULL;
-- Not sorted, because that takes as much memory as all ids do.
INSERT INTO ids SELECT seq >> 15, source, id, seq FROM events
WHERE seq < (SELECT value FROM state WHERE name = 'indexed') ORDER BY seq;

-- Bloom filters of the ids of full periods, eight in a block. The relay makes missing ones anew.
CREATE TABLE id_filters (
    block INTEGER PRIMARY KEY,             -- 262,144 event numbers
    periods INTEGER NOT NULL,              -- bits: the periods in it that have a filter
    digest BLOB NOT NULL,                  -- keyed, of all of this
    bits BLOB NOT NULL
) STRICT;
