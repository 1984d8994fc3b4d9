"""Tests of the project itself: locks, layout, documents, private names of dependencies."""
