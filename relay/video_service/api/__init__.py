"""The video service's API, as far as the relay uses it."""
