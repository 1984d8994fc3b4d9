"""Tests of `relay/sinks/pubsub`."""
