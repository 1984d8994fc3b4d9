"""New stores on SQLite as copies of a migrated one: to migrate takes longer than most tests."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import Lock

import pytest

from relay.store.sqlite import opening, schema
from relay.store.sqlite.driver import sqlite3

_steps = schema.steps


class _Copies:
    """Takes the place of the module `schema` in the store, which uses nothing else of it."""

    def __init__(self, template: sqlite3.Connection) -> None:
        self._template = template
        self._newest = schema.migrate(template, now_ms=0)
        self._lock = Lock()

    def migrate(
        self, db: sqlite3.Connection, *, now_ms: int, free_bytes: Callable[[], float]
    ) -> int:
        is_new = not db.execute("SELECT 1 FROM sqlite_master").fetchone()
        if not is_new or schema.steps is not _steps:
            return schema.migrate(db, now_ms=now_ms, free_bytes=free_bytes)
        with self._lock:
            self._template.backup(db)
        db.execute("UPDATE migrations SET applied_at = ?", (now_ms,))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return self._newest


@contextmanager
def copied() -> Iterator[None]:
    """Let stores of this process begin as copies; those of tests of migrations do not."""
    template = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with closing(template), pytest.MonkeyPatch.context() as patch:
        template.execute("PRAGMA auto_vacuum = INCREMENTAL")
        patch.setattr(opening, "schema", _Copies(template))
        yield
