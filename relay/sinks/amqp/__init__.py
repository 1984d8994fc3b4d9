"""The `amqp` sink."""

from relay.sinks.amqp.sink import Settings, build

__all__ = ["Settings", "build"]
