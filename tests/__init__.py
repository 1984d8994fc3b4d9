"""The tests of the relay: each name states a fact."""
