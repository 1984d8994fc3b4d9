"""The `redis` sink."""

from relay.sinks.redis.sink import Settings, build

__all__ = ["Settings", "build"]
