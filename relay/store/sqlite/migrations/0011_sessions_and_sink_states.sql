-- What the operator's page needs: who is logged in, and the states of sinks over the last days.

CREATE TABLE sessions (
    digest BLOB PRIMARY KEY,               -- SHA-256 of the identifier, which only the browser has
    role TEXT NOT NULL CHECK (role IN ('admin', 'viewer')),
    token BLOB NOT NULL,                   -- a keyed digest of the token that opened it
    opened_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    address TEXT                           -- of the operator
) STRICT, WITHOUT ROWID;

-- A row per change: the sink is in this state from then on.
CREATE TABLE sink_states (
    sink TEXT NOT NULL,
    at INTEGER NOT NULL,
    state TEXT,                            -- NULL: the relay was not running, or the sink is gone
    PRIMARY KEY (sink, at)
) STRICT, WITHOUT ROWID;

CREATE INDEX sink_states_at ON sink_states (at);
