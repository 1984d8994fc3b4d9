"""Tests of `relay/outbound`."""
