-- oldest: 1
ALTER TABLE relay.members ADD COLUMN revision text NOT NULL DEFAULT '';  -- of its code, where it is known
