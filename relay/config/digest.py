"""Tells apart the configs of relays that share a store."""

import hashlib

from relay.config import Config


def digest(config: Config) -> str:
    """Return a short digest of what members of a cluster should have in common.

    That is all but listeners, tokens and logging. Secrets count by their labels only.
    """
    shared = (config.sources, config.sinks, config.store)
    return hashlib.sha256(repr(shared).encode()).hexdigest()[:12]
