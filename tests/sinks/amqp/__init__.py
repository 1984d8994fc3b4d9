"""Tests of `relay/sinks/amqp`."""
