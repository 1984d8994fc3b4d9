"""Tests of `relay/delivery`."""
