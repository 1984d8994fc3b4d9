"""The `mqtt` sink."""

from relay.sinks.mqtt.sink import Settings, build

__all__ = ["Settings", "build"]
