"""Tests of `relay/config`."""
