-- oldest: 1
-- As before, whatever `standard_conforming_strings` is for the role.
CREATE OR REPLACE FUNCTION relay.body_value(body bytea, VARIADIC path text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT COST 100 AS $$
DECLARE
    document text := relay.body_text(body);
BEGIN
    BEGIN
        RETURN document::json #>> path;
    EXCEPTION WHEN data_exception THEN
        -- JSON may escape NUL and half a character, which a text cannot hold.
        RETURN regexp_replace(
            document, E'(?<!\\\\)((\\\\\\\\)*)\\\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{2})',
            E'\\1\\\\ufffd', 'g'
        )::json #>> path;
    END;
EXCEPTION WHEN OTHERS THEN  -- too deep, for example
    RETURN NULL;
END
$$;
-- `start` is now the same text in each time zone.
INSERT INTO relay.server_runs (history, start, first_beat_at)
SELECT history, floor(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text,
    first_beat_at
FROM relay.server_runs
WHERE history = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
    AND start = pg_postmaster_start_time()::text
ON CONFLICT DO NOTHING;
