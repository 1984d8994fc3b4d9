"""Result of a copy of a store, apart from what copies, which few processes load."""

import msgspec


class CopyResult(msgspec.Struct, frozen=True):
    """One table after the copy."""

    table: str
    rows: int
    is_same: bool
    """Whether both stores have the same rows, by their number and by a digest of all values."""
