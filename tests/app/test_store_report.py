"""Warnings about SQLite at the start."""

from pathlib import Path

import pytest

from relay.store.sqlite import driver
from tests.service import read, serving


@pytest.mark.parametrize("faulty", [True, False])
async def test_only_an_sqlite_with_the_wal_reset_bug_causes_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, faulty: bool
) -> None:
    monkeypatch.setattr(driver, "has_wal_reset_fault", lambda: faulty)
    async with serving(read(tmp_path)) as relay:
        told = [(line["level"], line["sqlite"]) for line in relay.lines("store.sqlite_fault")]
        assert told == ([("warning", driver.VERSION)] if faulty else [])
        assert all(
            "requirements-sqlite.txt" in str(line) for line in relay.lines("store.sqlite_fault")
        )
