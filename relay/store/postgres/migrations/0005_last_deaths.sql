-- oldest: 1
-- The status asks for the first and the last death of each sink.
CREATE INDEX deliveries_deaths ON relay.deliveries (sink, settled_at DESC NULLS LAST, reason)
WHERE status = 'dead';
