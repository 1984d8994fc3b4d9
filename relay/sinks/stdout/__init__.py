"""The `stdout` sink."""

from relay.sinks.stdout.sink import Settings, build

__all__ = ["Settings", "build"]
