"""People: their data, its export and its erasure."""
