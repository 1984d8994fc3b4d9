"""Bloom filters of the ids of many periods, tested together.

Eight periods make a block. A byte of its column has a bit for each of them, and the columns of all
blocks lie side by side, so that a test reads a few rows: one after the other, the filters of ten
million ids would cost an event a hundred misses of the processor's cache, 26 us in place of 5. An
id takes 2 bytes, and 1 in 1,400 foreign ids seems to be among those of a period.

A full period gets no more ids, so that its filter stays right. One that is missing or damaged costs
time, not exactness.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from struct import Struct
from typing import Self

import msgspec

PROBES = 7
BLOCK_BITS = 3
"""Eight periods have a byte."""

_PLACES_PER_ID = 16
_STEP_ROWS = 4096
"""Rows written for one column after another: the processor's cache holds them, and no write delays
other threads for long."""
_SPARE_BLOCKS = 2
_WORDS = Struct(f"<{PROBES}I")


def places(key: bytes, source: str, event_id: str) -> tuple[int, ...]:
    """Return the places of an id, modulo the length of a column; keyed, against a sender's aim."""
    text = f"{source}\0{event_id}".encode()
    return _WORDS.unpack(blake2b(text, digest_size=_WORDS.size, key=key).digest())


def column_bytes(ids: int) -> int:
    """Return the length of a column for this many ids in a period, a power of two."""
    return _PLACES_PER_ID * ids


def add(column: bytearray, period: int, ids: Iterable[tuple[int, ...]]) -> None:
    """Add ids, by their places, to the filter of a period in the column of its block."""
    bit, last = bit_of(period), len(column) - 1
    for found in ids:
        for place in found:
            column[place & last] |= bit


def holds(column: bytes, period: int, found: Iterable[int]) -> bool:
    """Whether an id, by its places, may be in a period."""
    bit, last = bit_of(period), len(column) - 1
    return all(column[place & last] & bit for place in found)


def block_of(period: int) -> int:
    """Return the block of a period."""
    return period >> BLOCK_BITS


def bit_of(period: int) -> int:
    """Return the bit of a period in its block."""
    return 1 << (period & (1 << BLOCK_BITS) - 1)


class _Rows:
    """Columns side by side: a row has a byte of each."""

    def __init__(self, length: int, width: int) -> None:
        self.width = width
        self._length = length
        self._step = min(_STEP_ROWS, length)
        self._bytes = bytearray(length * width)

    def put(self, columns: Iterable[tuple[int, bytes]]) -> None:
        """Write columns in their slots."""
        columns = tuple(columns)
        for start in range(0, self._length, self._step):
            for slot, column in columns:
                self._bytes[self._piece(start, slot)] = column[start : start + self._step]

    def widened(self, width: int) -> "_Rows":
        wide = _Rows(self._length, width)
        for start in range(0, self._length, self._step):
            for slot in range(self.width):
                wide._bytes[wide._piece(start, slot)] = self._bytes[self._piece(start, slot)]
        return wide

    def _piece(self, start: int, slot: int) -> slice:
        return slice(start * self.width + slot, (start + self._step) * self.width, self.width)

    def common(self, found: Iterable[int], bits: int) -> int:
        """Return those of the bits that are set in the rows of all places."""
        rows, width, last = self._bytes, self.width, self._length - 1
        for place in found:
            start = (place & last) * width
            bits &= int.from_bytes(rows[start : start + width], "little")
            if not bits:
                break
        return bits


class IdFilters(msgspec.Struct, frozen=True):
    """The filters in use; another thread may add one meanwhile."""

    _rows: _Rows
    _blocks: Mapping[int, int]
    """Blocks by their places in the row, because each test asks for them by these."""
    _active: int = 0
    """The bits in the row of the periods that have a filter."""

    @classmethod
    def empty(cls, ids: int, blocks: int = 0) -> Self:
        """Return no filters, for this many ids in a period, with room for some blocks."""
        return cls(_Rows(column_bytes(ids), blocks + _SPARE_BLOCKS), {})

    def with_blocks(self, columns: Iterable[tuple[int, int, bytes]]) -> "IdFilters":
        """Return these filters and those of some blocks: number, bits of the periods, column.

        Raises ValueError if one leaves out a period in use, which goes on being tested meanwhile.
        """
        blocks, rows, active = dict(self._blocks), self._rows, self._active
        slots = {block: slot for slot, block in blocks.items()}
        placed: list[tuple[int, bytes]] = []
        for block, periods, column in columns:
            if block not in slots:
                slots[block] = next(slot for slot in range(len(blocks) + 1) if slot not in blocks)
            slot = slots[block]
            blocks[slot] = block
            if active >> 8 * slot & 0xFF & ~periods:
                raise ValueError(f"the filters of block {block} lack a period")
            active |= periods << 8 * slot
            placed.append((slot, column))
        width = max((slot + 1 for slot, _ in placed), default=0)
        if width > rows.width:
            # In proportion, because it copies all columns.
            rows = rows.widened(max(width, rows.width + max(_SPARE_BLOCKS, rows.width // 4)))
        rows.put(placed)
        return IdFilters(rows, blocks, active)

    def without(self, blocks: Iterable[int]) -> "IdFilters":
        """Return these filters without those of some blocks."""
        gone = set(blocks)
        bits = sum(0xFF << 8 * slot for slot, block in self._blocks.items() if block in gone)
        kept = {slot: block for slot, block in self._blocks.items() if block not in gone}
        return IdFilters(self._rows, kept, self._active & ~bits)

    @property
    def blocks(self) -> frozenset[int]:
        """The blocks that have a filter."""
        return frozenset(self._blocks.values())

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def periods(self) -> list[int]:
        """Return the periods that have a filter."""
        return self._periods(self._active)

    def matching(self, found: Iterable[int]) -> list[int]:
        """Return the periods that may have an id, by its places."""
        bits = self._rows.common(found, self._active)
        return self._periods(bits) if bits else []

    def _periods(self, bits: int) -> list[int]:
        periods = []
        while bits:
            number = bits.bit_length() - 1
            bits ^= 1 << number
            slot, period = divmod(number, 1 << BLOCK_BITS)
            periods.append((self._blocks[slot] << BLOCK_BITS) + period)
        return periods
