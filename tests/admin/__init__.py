"""Tests of `relay/admin`."""
