"""Tests of `relay.reconciliation`."""
