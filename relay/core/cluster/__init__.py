"""Which member of a cluster dispatches a sink, and until when; performs no I/O of its own.

A simulation holds its invariants through lost answers, pauses and failovers (CONTRIBUTING.md).
"""
