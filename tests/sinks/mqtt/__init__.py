"""Tests of `relay/sinks/mqtt`."""
