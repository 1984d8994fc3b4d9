"""Requests in: verification, durable acceptance, and secret rotation."""
