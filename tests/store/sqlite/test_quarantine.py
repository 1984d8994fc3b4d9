"""What the quarantine leaves in the store's files, and on a disk without room."""

from pathlib import Path

import pytest

from relay.core.errors import StoreFull
from tests.conftest import ManualClock
from tests.store.places import opened
from tests.store.test_quarantine import begin, expire, request, waiting


async def test_no_file_contains_expired_requests(tmp_path: Path, clock: ManualClock) -> None:
    marked = b"ada@example.com"
    async with opened(tmp_path / "relay.db", clock) as store:
        await begin(store)
        await store.quarantine.keep(request(marked * 300))
        await expire(store)
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert files
    assert [path.name for path in files if marked in path.read_bytes()] == []


async def test_nothing_is_kept_below_the_floor_of_free_space(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with opened(tmp_path / "relay.db", clock, min_free="999999999GiB") as store:
        await begin(store)
        with pytest.raises(StoreFull):
            await store.quarantine.keep(request())
        assert await waiting(store) == []
