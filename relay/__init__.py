"""A receiver and relay for the video service's webhooks that loses nothing it has acknowledged."""
