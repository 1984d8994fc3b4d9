"""Tests of `relay/server`."""
