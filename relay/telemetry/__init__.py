"""Metrics, log lines and the activity stream."""
