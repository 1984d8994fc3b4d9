"""What the quarantine leaves in the store's files, and on a disk without room."""

from pathlib import Path

import pytest

from relay.core.config_values import Size
from relay.core.errors import StoreFull
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from tests.conftest import ManualClock
from tests.store.test_quarantine import begin, expire, request, waiting


async def test_no_file_contains_expired_requests(tmp_path: Path, clock: ManualClock) -> None:
    marked = b"ada@example.com"
    settings = SqliteSettings(path=str(tmp_path / "relay.db"), min_free=Size.parse("1B"))
    store = await open_store(settings, clock=clock)
    await begin(store)
    await store.quarantine.keep(request(marked * 300))
    await expire(store)
    await store.close()
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert files
    assert [path.name for path in files if marked in path.read_bytes()] == []


async def test_nothing_is_kept_below_the_floor_of_free_space(
    tmp_path: Path, clock: ManualClock
) -> None:
    settings = SqliteSettings(path=str(tmp_path / "relay.db"), min_free=Size.parse("999999999GiB"))
    store = await open_store(settings, clock=clock)
    await begin(store)
    with pytest.raises(StoreFull):
        await store.quarantine.keep(request())
    assert await waiting(store) == []
    await store.close()
