"""Tests of `relay/outbound/http`."""
