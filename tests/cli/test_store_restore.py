"""`relay store restore`: a backup in the place of the store, and the old log beside it."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from relay.cli import main
from relay.cli.private_file import appearing
from relay.core import sample_events
from relay.core.errors import StoreRefused
from relay.core.event import LEAD_CAPTURED
from relay.store.sqlite import disk, engine, preflight
from relay.store.sqlite.settings import SqliteSettings
from tests.cli.test_store import filled, opened

Restore = Callable[..., Result]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "relay.db"


@pytest.fixture
def config(tmp_path: Path, path: Path) -> Path:
    config = tmp_path / "config.toml"
    config.write_text(
        f'[store]\npath = "{path}"\nmin_free = "1MiB"\n'
        '[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = ["a-secret-of-sixteen"]\n',
        encoding="utf-8",
    )
    return config


@pytest.fixture
def restore(config: Path) -> Restore:
    def restore(copy: Path, *arguments: str) -> Result:
        command = ["store", "restore", str(copy), "--config", str(config), *arguments]
        return CliRunner().invoke(main, command)

    return restore


@pytest.fixture
async def copy(tmp_path: Path, path: Path) -> Path:
    """A backup with 3 events, beside a store that has more, and a log, as a kill leaves it."""
    copy = tmp_path / "copy.db"
    store = await filled(path, events=3)
    async with store.backups.copied() as made:
        shutil.copyfile(made, copy)
    for number in range(20):
        event = sample_events.event(LEAD_CAPTURED, source="main", event_id=f"later_{number}")
        await store.accept(event, (), lambda _: None)
    kept = {name: name.read_bytes() for name in _files(path)}
    await store.close()
    for name, content in kept.items():
        name.write_bytes(content)
    assert path.with_name("relay.db-wal").stat().st_size > 0
    return copy


def _files(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}{suffix}") for suffix in ("", "-wal", "-shm")]


async def counted(path: Path) -> int:
    inspection = await engine.inspect(SqliteSettings(path=str(path)))
    assert (inspection.faults, inspection.content is not None) == ((), True)
    assert inspection.content is not None
    return inspection.content.events


async def test_a_backup_takes_the_place_of_a_store_with_a_log_and_both_are_whole(
    path: Path, copy: Path, restore: Restore
) -> None:
    content = copy.read_bytes()
    done = await asyncio.to_thread(restore, copy, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert (document["file"], document["ok"], document["events"]) == (str(path), True, 3)
    assert copy.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert await counted(path) == 3
    assert await counted(Path(document["kept"])) == 23
    store = await opened(path)
    await store.close()
    assert not list(path.parent.glob("*.restoring-*"))


async def test_a_restore_says_where_the_old_store_is(copy: Path, restore: Restore) -> None:
    done = await asyncio.to_thread(restore, copy)
    assert "relay.db: sound" in done.output
    assert "The old store is kept as " in done.output
    assert "what the sender sent since the backup is not in it" in done.output


async def test_a_backup_where_no_store_is_becomes_one(
    path: Path, copy: Path, restore: Restore
) -> None:
    for file in _files(path):
        file.unlink()
    done = await asyncio.to_thread(restore, copy, "--json")
    assert json.loads(done.output)["kept"] is None
    assert await counted(path) == 3


async def test_nothing_is_restored_while_a_relay_has_the_store(
    path: Path, copy: Path, restore: Restore
) -> None:
    before = [file.read_bytes() for file in _files(path)]
    with disk.lock(path):
        done = await asyncio.to_thread(restore, copy)
    assert done.exit_code != 0
    assert "another relay holds the store" in done.output
    assert [file.read_bytes() for file in _files(path)] == before


@pytest.mark.parametrize("content", [b"no database at all", b""])
async def test_a_file_that_is_no_backup_changes_nothing(
    path: Path, copy: Path, restore: Restore, content: bytes
) -> None:
    copy.write_bytes(content)
    before = [file.read_bytes() for file in _files(path)]
    done = await asyncio.to_thread(restore, copy)
    assert done.exit_code != 0
    assert "Traceback" not in done.output
    assert [file.read_bytes() for file in _files(path)] == before
    assert sorted(path.parent.glob("*.restoring-*")) == []


async def test_a_store_is_not_restored_from_itself(
    path: Path, copy: Path, restore: Restore
) -> None:
    done = await asyncio.to_thread(restore, path)
    assert done.exit_code != 0
    assert "is the store itself" in done.output
    assert copy.exists()


async def test_a_start_refuses_a_backup_beside_the_log_of_another_store_and_destroys_neither(
    path: Path, copy: Path
) -> None:
    shutil.copyfile(copy, path)
    before = [file.read_bytes() for file in _files(path)]
    cause = preflight.check(path)
    assert cause is not None
    assert "is the log of another database" in cause
    with pytest.raises(StoreRefused, match="relay store restore"):
        await opened(path)
    assert [file.read_bytes() for file in _files(path)] == before


def test_a_file_has_its_name_only_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    with appearing(path) as file:
        file.write(b"the beginning")
        file.flush()
        assert list(tmp_path.iterdir()) == []
    assert path.read_bytes() == b"the beginning"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError), appearing(path):
        pass
    other = tmp_path / "other.db"
    with pytest.raises(ZeroDivisionError), appearing(other) as file:
        file.write(b"x" * (1 // 0))
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_has_its_name_from_the_beginning_where_the_file_system_needs_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_WRONLY)
    path = tmp_path / "copy.db"
    with pytest.raises(ZeroDivisionError), appearing(path) as file:
        file.write(b"x" * (1 // 0))
    assert list(tmp_path.iterdir()) == []
    with appearing(path) as file:
        file.write(b"all")
    assert path.read_bytes() == b"all"
