"""Tests of the durable half."""
