"""Events out: one dispatcher per sink, its circuit breaker, retries and replays."""
