"""The `sqs` sink."""

from relay.sinks.sqs.sink import Settings, build

__all__ = ["Settings", "build"]
