-- oldest: 1
-- Clients that had the right token lately, which no stranger's wrong tokens delay.
CREATE TABLE relay.known_clients (
    mark bytea PRIMARY KEY,                -- a keyed digest of an address, or of a browser's cookie
    role text COLLATE "C" NOT NULL CHECK (role IN ('admin', 'viewer')),
    right_at bigint NOT NULL
);
-- Older relays accept and send events without it; until they are replaced, they refuse logins.
DROP TABLE relay.login_tries;
-- The status looks for the last changes of one kind.
CREATE INDEX audit_operation ON relay.audit (operation, id);
