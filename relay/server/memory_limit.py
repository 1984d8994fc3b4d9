"""A limit on what a listener's connections hold of requests that are not verified yet.

Anyone can make a relay hold heads and bodies, so all of them together have a limit.
"""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

PUBLIC_BYTES = 32 << 20
ADMIN_BYTES = 8 << 20
"""Its requests have bodies of 64 KiB at most."""

UNCOUNTED_BYTES = 32 * 1024
"""What each connection may hold beside that; nearly every request fits, and costs no count."""

READ_BYTES = 8 * 1024
"""What is read from a connection at once.

All connections may have that much within one turn of the loop, before one that gave way is gone.
"""

_BODIES = 4
_SLACK = 16
"""Part of the limit that is made free at once, because looking for the largest takes time."""


class Holder(Protocol):
    """A connection that holds requests."""

    def give_way(self) -> bool:
        """Free what it holds, by closing at once; returns whether it did."""
        ...


class MemoryLimit:
    """Knows what each connection holds, for which address; the one that holds most gives way."""

    def __init__(self, total: int, *, reached: Callable[[str], None]) -> None:
        """`reached` is called with each address whose connections had to give way."""
        self.total = total
        self.buffer = memoryview(bytearray(READ_BYTES))
        """What all connections read into, one after the other."""
        self._reached = reached
        self._held: dict[Holder, tuple[str, int]] = {}
        self._by_address = Counter[str]()
        self._sum = 0

    def hold(self, connection: Holder, address: str, size: int) -> None:
        """Set what a connection holds; its own may be the one that gives way."""
        self.release(connection)
        self._held[connection] = address, size
        self._by_address[address] += size
        self._sum += size
        if self._sum > self.total:
            self._make_room()

    def release(self, connection: Holder) -> None:
        """May be called for a connection that holds nothing."""
        address, size = self._held.pop(connection, ("", 0))
        self._sum -= size
        if size:
            self._by_address[address] -= size
            if not self._by_address[address]:
                del self._by_address[address]

    def _make_room(self) -> None:
        """Close connections, the largest of the address that holds most first."""
        enough = self.total - self.total // _SLACK
        by_size = sorted(
            (
                (self._by_address[address], address, size, holder)
                for holder, (address, size) in self._held.items()
            ),
            key=lambda each: each[:3],
            reverse=True,
        )
        addresses: set[str] = set()
        for _, address, _, holder in by_size:
            if self._sum <= enough:
                break
            if holder.give_way():
                self.release(holder)
                addresses.add(address)
        for address in addresses:
            self._reached(address)


def public_bytes(max_body: int) -> int:
    """Several of the largest bodies have room, whatever a config allows."""
    return max(PUBLIC_BYTES, _BODIES * max_body)
