"""Tests of `relay/core`."""
