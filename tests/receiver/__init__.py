"""Tests of `relay/receiver`."""
