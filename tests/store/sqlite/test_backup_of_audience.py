"""A backup holds the audience."""

from pathlib import Path

from relay.store.sqlite.backup import SqliteBackups
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept
from tests.store.erasing import erase
from tests.store.places import SqlitePlace
from tests.store.test_audience import ANN, BY_VIDEO, fill, lead, opened, watched


async def test_a_backup_holds_the_audience(
    sqlite_place: SqlitePlace, clock: ManualClock, tmp_path: Path
) -> None:
    copy = SqlitePlace(tmp_path / "copy")
    copy.path.parent.mkdir(mode=0o700)
    async with opened(sqlite_place, clock) as store:
        await accept(store, watched("a"), lead("b"))
        await fill(store)
        async with SqliteBackups(sqlite_place.path, min_free=0).copied() as made:
            copy.path.write_bytes(made.read_bytes())
        answer = await store.audience.funnel(BY_VIDEO)
    async with opened(copy, clock) as store:
        assert await store.audience.funnel(BY_VIDEO) == answer
        assert (await erase(store, ANN, now_ms=NOW_MS)).views == 2
