"""Sinks: their list, one sink, and the trial of an event."""
