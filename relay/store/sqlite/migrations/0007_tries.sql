-- Deliveries that were never tried come before those that failed, so that no number of events that
-- a sink dislikes keeps the others waiting. Each of the two has an index of its own.

ALTER TABLE deliveries ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;  -- all, also uncounted ones
ALTER TABLE deliveries ADD COLUMN tried_at INTEGER;                  -- when the last one began

UPDATE deliveries SET tries = max(attempts, 1)
WHERE status = 'pending' AND (attempts > 0 OR replay IS NULL AND reason IS NOT NULL);

DROP INDEX deliveries_due;
DROP INDEX deliveries_replayed;
CREATE INDEX deliveries_due ON deliveries (sink, due_at, event)
WHERE status = 'pending' AND replay IS NULL AND tries = 0;
CREATE INDEX deliveries_replayed ON deliveries (sink, due_at, event, replay, tries)
WHERE status = 'pending' AND replay IS NOT NULL;
CREATE INDEX deliveries_tried ON deliveries (sink, due_at, event)
WHERE status = 'pending' AND tries > 0;
