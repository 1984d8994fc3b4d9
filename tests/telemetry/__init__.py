"""Tests of `relay/telemetry`."""
