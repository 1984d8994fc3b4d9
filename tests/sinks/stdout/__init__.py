"""Tests of `relay/sinks/stdout`."""
