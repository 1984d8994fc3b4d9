"""Inspection of a store without all of the permissions that SQLite needs."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relay.store.integrity import Inspection
from relay.store.sqlite.integrity import inspect
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from tests.conftest import ManualClock

NOBODY = 65534


@pytest.fixture
def path() -> Iterator[Path]:
    """In a folder that another user can reach, as those that pytest makes cannot be."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "relay.db"
        Path(folder).chmod(0o700)


@contextmanager
def as_another_user() -> Iterator[None]:
    """Drop root's privileges, because nothing is refused to root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(user)


async def inspected(path: Path, *, mode: int) -> Inspection:
    path.chmod(mode)
    path.parent.chmod(0o555)
    with as_another_user():
        return await inspect(path)


async def test_a_read_only_folder_is_reported_with_an_action(
    path: Path, clock: ManualClock
) -> None:
    await (await open_store(SqliteSettings(path=str(path)), clock=clock)).close()
    inspection = await inspected(path, mode=0o444)
    assert inspection.content is None
    (fault,) = inspection.faults
    assert "-shm" in fault
    assert fault.endswith("run this as relay's user")


async def test_an_unreadable_file_is_reported_with_an_action(
    path: Path, clock: ManualClock
) -> None:
    await (await open_store(SqliteSettings(path=str(path)), clock=clock)).close()
    (fault,) = (await inspected(path, mode=0o000)).faults
    assert fault.startswith("unable to open database file")
    assert fault.endswith("run this as relay's user")
