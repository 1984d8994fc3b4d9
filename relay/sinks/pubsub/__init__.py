"""The `pubsub` sink."""

from relay.sinks.pubsub.sink import Settings, build

__all__ = ["Settings", "build"]
