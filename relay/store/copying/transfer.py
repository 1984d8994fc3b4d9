"""The copy itself, which goes on where it was cut off, and compares both stores at the end."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import chain

import msgspec

from relay.store.copy_result import CopyResult
from relay.store.copying import source as sources
from relay.store.copying import target as targets
from relay.store.copying.source import SourceStore
from relay.store.copying.tables import TABLES, CopiedTable
from relay.store.copying.target import TargetSchema
from relay.store.postgres.settings import PostgresSettings
from relay.store.sqlite.driver import Row
from relay.store.sqlite.settings import SqliteSettings

BATCH_ROWS = 5000
BATCH_BYTES = 16 << 20
"""Size of a transaction, which is what a copy that is cut off does again."""


def copy(
    source: SqliteSettings,
    target: PostgresSettings,
    *,
    now_ms: int,
    wrote: Callable[[str, int], None] = lambda _, __: None,
    compares: Callable[[str], None] = lambda _: None,
) -> list[CopyResult]:
    """Copy all tables and compare them; `wrote` is called with table and rows of each batch.

    `compares` is called with each table before it is compared, which takes as long as its copy.

    The target can be opened by a relay only after a copy that is the same in all tables.
    Raises StoreLocked while a relay holds the source, StoreRefused for a target that is not empty,
    and StoreError.
    """
    with sources.opened(source) as old, targets.opened(target) as new:
        old.require_newest()
        new.begin(old.fingerprint(), now_ms=now_ms)
        for table in TABLES:
            _copy_table(table, old, new, wrote)
        copied = []
        for table in TABLES:
            compares(table.name)
            copied.append(_compared(table, old, new))
        if all(each.is_same for each in copied):
            new.finish()
        return copied


def _copy_table(
    table: CopiedTable, old: SourceStore, new: TargetSchema, wrote: Callable[[str, int], None]
) -> None:
    columns = old.columns(table)
    rows = old.rows(table, new.last_key(table))
    for first in rows:
        batch = list(_batch(chain((first,), rows)))
        new.write(table, columns, batch)
        wrote(table.name, len(batch))
    if table.numbered is not None:
        new.number_from(table, old.last_number(table))


def _batch(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows until one more transaction is full, and at least one."""
    size = 0
    for number, row in enumerate(rows, 1):
        yield row
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if number >= BATCH_ROWS or size >= BATCH_BYTES:
            return


def _compared(table: CopiedTable, old: SourceStore, new: TargetSchema) -> CopyResult:
    columns = old.columns(table)
    rows, digest = _digest(old.rows(table))
    return CopyResult(table.name, rows, (rows, digest) == _digest(new.rows(table, columns)))


def _digest(rows: Iterator[Row]) -> tuple[int, bytes]:
    """Return number and digest of rows in their order."""
    digest, count = sha256(), 0
    for row in rows:
        digest.update(msgspec.msgpack.encode(row))
        count += 1
    return count, digest.digest()
