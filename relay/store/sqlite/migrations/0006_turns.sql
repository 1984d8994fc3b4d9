-- Deliveries to an ordered sink go one after another where they share a turn.

-- A keyed digest of the sink and of what the order is kept for; only while the delivery is pending.
-- One that waits for another of its turn is held: see relay/store/turns.py.
ALTER TABLE deliveries ADD COLUMN turn INTEGER;

CREATE INDEX deliveries_turns ON deliveries (sink, turn, event) WHERE turn IS NOT NULL;
