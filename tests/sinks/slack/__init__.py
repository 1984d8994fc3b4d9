"""Tests of `relay/sinks/slack`."""
