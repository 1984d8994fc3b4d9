"""Every number that the relay says of itself, on its page, in API, commands, metrics and SQL."""
