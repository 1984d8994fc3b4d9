"""Tests of `relay/app`."""
