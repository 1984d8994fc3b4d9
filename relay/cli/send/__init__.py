"""`relay send`: signed sample events, sent as the video service sends them."""
