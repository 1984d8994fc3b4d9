-- Clients that had the right token lately, which no stranger's wrong tokens delay.

CREATE TABLE known_clients (
    mark BLOB PRIMARY KEY,                 -- a keyed digest of an address, or of a browser's cookie
    role TEXT NOT NULL CHECK (role IN ('admin', 'viewer')),
    right_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The status looks for the last changes of one kind.
CREATE INDEX audit_operation ON audit (operation, id);
