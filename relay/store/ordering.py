"""Turns of ordered deliveries, the same in all engines: keyed digests of their ordering keys."""

from hashlib import blake2b

_TURN_BYTES = 8

HELD_MS = 1 << 60
"""Added on SQLite to the due time of a delivery that waits for its turn: later than any time."""


class OrderingKeys:
    """Derives turns from ordering keys, with a secret of the store: a key may be an address.

    Keys whose turns collide wait for one another, which is harmless.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def live(self, sink: str, key: str) -> int:
        return self._turn("live", sink, key)

    def replayed(self, sink: str, key: str) -> int:
        """Differs from `live`: live and replayed deliveries do not wait for each other."""
        return self._turn("replay", sink, key)

    def _turn(self, tier: str, sink: str, key: str) -> int:
        text = f"{tier}\0{sink}\0{key}".encode(errors="replace")
        digest = blake2b(text, digest_size=_TURN_BYTES, key=self._key).digest()
        return int.from_bytes(digest, "big") >> 1  # the engines' integers are signed
