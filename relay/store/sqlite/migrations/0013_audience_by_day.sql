-- The audience by day, so that its counts need not read every view. Made of the rows of `audience`
-- some time after them: the state `audience_days` is the last event that is in it.

-- A person as a small number, for bitmaps. A number is never given to another person.
CREATE TABLE viewers (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    person INTEGER NOT NULL UNIQUE         -- as in `audience`
) STRICT;

-- Each of the blobs begins with its CRC-32: see relay/store/sqlite/audience_sets.py.
CREATE TABLE audience_days (
    number INTEGER PRIMARY KEY,
    day INTEGER NOT NULL,                  -- its first millisecond, of UTC
    source TEXT NOT NULL,
    step TEXT NOT NULL,
    events INTEGER NOT NULL,
    anonymous INTEGER NOT NULL,            -- events without an address
    people BLOB NOT NULL,                  -- the numbers of the people
    half_hours BLOB NOT NULL,              -- the same by half hour
    viewers BLOB NOT NULL,                 -- video and person, in pairs
    videos BLOB NOT NULL,                  -- events by video
    UNIQUE (day, source, step)
) STRICT;

-- The same of seven days, once they are over: fewer sets to join. One that is missing is made anew.
CREATE TABLE audience_weeks (
    number INTEGER PRIMARY KEY,
    week INTEGER NOT NULL,                 -- its first millisecond; the first week began in 1970
    source TEXT NOT NULL,
    step TEXT NOT NULL,
    events INTEGER NOT NULL,
    anonymous INTEGER NOT NULL,
    people BLOB NOT NULL,
    half_hours BLOB NOT NULL,              -- of the day, over all seven
    viewers BLOB NOT NULL,
    videos BLOB NOT NULL,
    UNIQUE (week, source, step)
) STRICT;
