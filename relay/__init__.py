"""A receiver and relay for the video service's webhooks that loses nothing it has acknowledged."""

__version__ = "0.3.0"
