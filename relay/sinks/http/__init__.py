"""The `http` sink."""

from relay.sinks.http.sink import Settings, build

__all__ = ["Settings", "build"]
