-- An index answers by itself only where it holds every column that is asked about, also those that
-- its own condition settles. Backlogs and dead letters are counted at each start.

DROP INDEX deliveries_pending;
DROP INDEX deliveries_dead;
CREATE INDEX deliveries_pending ON deliveries (sink, event, status, replay)
WHERE status = 'pending' AND replay IS NULL;
CREATE INDEX deliveries_dead ON deliveries (sink, event, status) WHERE status = 'dead';
