"""`relay send`: sends signed sample events as the video service does."""
