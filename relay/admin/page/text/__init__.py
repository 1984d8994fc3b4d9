"""Texts that the page shows, and those that people type."""
