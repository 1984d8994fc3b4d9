"""`relay demo`: a relay with sample events, without a config."""
