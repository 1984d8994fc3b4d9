"""Tests of `relay/sinks/http`."""
