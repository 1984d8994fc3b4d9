"""Bloom filters of event ids: whether an id may be among those of a period, or cannot be.

A filter takes 2 bytes per id, and holds 1 in 700 foreign ids to be among its own.
"""

from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct

PROBES = 5
"""Bits per id: more would make foreign ids rarer, but the filter denser and its test slower."""

_BYTES_PER_ID = 2
_WORDS = Struct(f"<{PROBES}I")

Probes = tuple[int, int, int, int, int, int, int, int, int, int]
"""Byte and bit of each probe, one after the other."""


def size_of(ids: int) -> int:
    """Return the size of a filter for this many ids, in bytes; `ids` is a power of two."""
    return _BYTES_PER_ID * ids


def probes(key: bytes, source: str, event_id: str, size: int) -> Probes:
    """Return the places of an id; keyed, so that a sender cannot aim at them."""
    text = f"{source}\0{event_id}".encode()
    a, b, c, d, e = _WORDS.unpack(blake2b(text, digest_size=_WORDS.size, key=key).digest())
    last = size - 1
    # Written out, because each event is looked up: a loop takes three times as long.
    return (
        a >> 3 & last,
        1 << (a & 7),
        b >> 3 & last,
        1 << (b & 7),
        c >> 3 & last,
        1 << (c & 7),
        d >> 3 & last,
        1 << (d & 7),
        e >> 3 & last,
        1 << (e & 7),
    )


def add(bits: bytearray, places: Iterable[Probes]) -> None:
    """Add ids to a filter."""
    for i, x, j, y, k, z, m, v, n, w in places:
        bits[i] |= x
        bits[j] |= y
        bits[k] |= z
        bits[m] |= v
        bits[n] |= w


def matching(filters: Iterable[tuple[int, bytes]], places: Probes) -> list[int]:
    """Return the numbers of the filters that may hold an id."""
    i, x, j, y, k, z, m, v, n, w = places
    return [
        number
        for number, bits in filters
        if bits[i] & x and bits[j] & y and bits[k] & z and bits[m] & v and bits[n] & w
    ]
