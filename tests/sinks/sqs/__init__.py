"""Tests of `relay/sinks/sqs`."""
