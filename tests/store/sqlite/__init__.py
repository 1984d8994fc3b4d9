"""Tests of `relay/store/sqlite`."""
