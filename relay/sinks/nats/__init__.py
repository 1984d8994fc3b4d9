"""The `nats` sink."""

from relay.sinks.nats.sink import Settings, build

__all__ = ["Settings", "build"]
