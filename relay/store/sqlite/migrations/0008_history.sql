-- What the relay remembers of itself: when it was away, and what its operators changed.

CREATE TABLE absences (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    cause TEXT NOT NULL CHECK (cause IN ('stopped', 'crashed', 'stalled')),
    from_at INTEGER NOT NULL,
    to_at INTEGER NOT NULL,
    lost_until INTEGER,                    -- first sent from from_at until then: gone; NULL: nothing is
    acknowledged_at INTEGER                -- NULL: no operator has taken note of it
) STRICT;

CREATE INDEX absences_open ON absences (id) WHERE lost_until IS NOT NULL AND acknowledged_at IS NULL;

-- One row per change, begun before the change, so that none is missing after a crash.
-- An e-mail address stands here as a keyed digest only.
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    begun_at INTEGER NOT NULL,
    ended_at INTEGER,                      -- NULL: under way, or cut off
    operation TEXT NOT NULL,
    target TEXT,                           -- a sink, a source, a replay ...
    asked TEXT NOT NULL,                   -- JSON: a filter, or other values of the request
    status INTEGER,                        -- as HTTP has it: 200 for done
    result TEXT,                           -- JSON: counts
    actor TEXT,                            -- the label of the token; NULL: no request asked for it
    address TEXT,                          -- of the peer
    via TEXT                               -- User-Agent, or another trigger
) STRICT;
