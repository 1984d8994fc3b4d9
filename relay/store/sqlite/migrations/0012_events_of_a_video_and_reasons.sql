-- The newest events of one video: without it, a video that few watch takes a scan of all views.
CREATE INDEX audience_of_video ON audience (video, event);

-- Dead letters by sink and reason with their first and last time, read from the index alone.
CREATE INDEX deliveries_reasons ON deliveries (sink, reason, settled_at, status)
WHERE status = 'dead';
