-- What an outage cost, and what the sender's API gave back of it.

-- 0: the sender sent it; 1: made from the sender's API; 2: as 1, and the original has arrived since
ALTER TABLE events ADD COLUMN reconstructed INTEGER NOT NULL DEFAULT 0;

CREATE INDEX events_reconstructed ON events (source, id) WHERE reconstructed = 1;
CREATE INDEX events_superseded ON events (seq) WHERE reconstructed = 2;

-- What is known of a video beside its views; made of the bodies together with the audience.
CREATE TABLE library (
    source TEXT NOT NULL,
    video INTEGER NOT NULL,                -- its number
    change TEXT NOT NULL,                  -- created, ready 2, failed 1, trashed, deleted
    event INTEGER NOT NULL,                -- the newest one that says so; the row outlives it
    at INTEGER NOT NULL,                   -- when that was received
    PRIMARY KEY (source, video, change)
) STRICT, WITHOUT ROWID;

INSERT INTO library
SELECT e.source, v.number, e.change, max(e.seq), max(e.received_at)
FROM (
    SELECT seq, source, received_at, json_extract(body, '$.data.id') AS id,
        CASE kind
            WHEN 'video.created' THEN 'created'
            WHEN 'video.ready' THEN 'ready ' || CAST(coalesce(json_extract(body, '$.data.version'), 0) AS INTEGER)
            WHEN 'video.failed' THEN 'failed ' || CAST(coalesce(json_extract(body, '$.data.version'), 0) AS INTEGER)
            ELSE iif(json_extract(body, '$.data.trashed'), 'trashed', 'deleted')
        END AS change
    FROM (
        SELECT seq, source, received_at, kind,
            iif(json_valid(CAST(body AS TEXT)), CAST(body AS TEXT), NULL) AS body
        FROM events
        WHERE kind IN ('video.created', 'video.ready', 'video.failed', 'video.deleted')
            AND body IS NOT NULL
    )
) AS e JOIN videos v ON v.id = e.id
WHERE e.change IS NOT NULL
GROUP BY 1, 2, 3;

-- A deletion before this time may have been seen and forgotten.
INSERT INTO state
SELECT 'library', at FROM (
    SELECT max(received_at) AS at FROM events WHERE kind = 'video.deleted' AND body IS NULL
)
WHERE at IS NOT NULL;

-- A row per run that asked the sender's API what an absence cost.
CREATE TABLE reconciliations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    dry INTEGER NOT NULL,                  -- 1: nothing was accepted
    begun_at INTEGER NOT NULL,
    ended_at INTEGER,                      -- NULL: under way, or cut off
    state TEXT NOT NULL CHECK (state IN ('running', 'done', 'failed', 'cancelled')),
    report TEXT                            -- JSON: numbers and reasons
) STRICT;

-- Where the next run begins to read the sender's list of views.
CREATE TABLE reconciled_places (
    source TEXT PRIMARY KEY,
    place TEXT NOT NULL,                   -- the API's own word for it
    at INTEGER NOT NULL                    -- every view before the place was over by then
) STRICT, WITHOUT ROWID;
