-- What outlives the bodies: how many events of a kind there were, and who saw how much of a video.

-- New events, counted in the transaction that accepts them. The metrics go on from here after a
-- restart, and nothing is ever taken away.
CREATE TABLE totals (
    source TEXT NOT NULL,
    kind TEXT NOT NULL,                    -- one of the sender's kinds, or other
    milestone TEXT NOT NULL,               -- of video.watched; empty for all else
    events INTEGER NOT NULL,
    last_at INTEGER NOT NULL,              -- when the newest of them was received
    PRIMARY KEY (source, kind, milestone)
) STRICT, WITHOUT ROWID;

INSERT INTO totals
SELECT
    source,
    CASE
        WHEN kind IN ('video.created', 'video.ready', 'video.failed', 'video.deleted',
            'video.watched', 'lead.captured', 'webhook.test') THEN kind
        ELSE 'other'
    END,
    CASE iif(
        kind = 'video.watched' AND json_valid(CAST(body AS TEXT)),
        json_extract(CAST(body AS TEXT), '$.data.milestone'),
        NULL
    )
        WHEN 'started' THEN 'started'
        WHEN '25%' THEN '25%'
        WHEN '50%' THEN '50%'
        WHEN '75%' THEN '75%'
        WHEN 'completed' THEN 'completed'
        ELSE ''
    END,
    count(*),
    max(received_at)
FROM events GROUP BY 1, 2, 3;

-- A video that some event was about.
CREATE TABLE videos (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    title TEXT                             -- the last one that was seen
) STRICT;

-- One row for each event of a viewer or a lead, made of its body some time after it was accepted:
-- the state `audience` is the last event that was looked at. No body beyond it is forgotten.
CREATE TABLE audience (
    event INTEGER PRIMARY KEY,             -- its seq; the row outlives the event
    source TEXT NOT NULL,
    video INTEGER,                         -- its number; NULL where the event names none
    step TEXT NOT NULL,                    -- a milestone, or lead
    person INTEGER,                        -- a keyed digest of the address; NULL without one
    at INTEGER NOT NULL                    -- when the event was received
) STRICT;

CREATE INDEX audience_at ON audience (at);
