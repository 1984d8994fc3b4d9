"""Dispatching in virtual time: the real dispatchers and stores over models of their tables."""
