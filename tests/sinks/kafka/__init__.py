"""Tests of `relay/sinks/kafka`."""
