"""Tests of `relay/sinks/nats`."""
