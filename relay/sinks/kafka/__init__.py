"""The `kafka` sink."""

from relay.sinks.kafka.sink import Settings, build

__all__ = ["Settings", "build"]
