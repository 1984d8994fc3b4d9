"""Tests of `relay/sinks/redis`."""
