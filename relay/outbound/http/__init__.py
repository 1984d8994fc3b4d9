"""The HTTP client that delivers events."""
