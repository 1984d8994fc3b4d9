"""Dead letters and unreadable requests."""
