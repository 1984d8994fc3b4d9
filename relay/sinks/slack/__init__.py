"""The `slack` sink."""

from relay.sinks.slack.sink import Settings, build

__all__ = ["Settings", "build"]
