-- What was pending when a replay began is no part of it, also once it has been delivered.

-- The rowid of the last attempt there was at that time; a replay of an older relay has no limit.
ALTER TABLE replays ADD COLUMN attempt INTEGER NOT NULL DEFAULT 9223372036854775807;
