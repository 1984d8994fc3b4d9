"""`relay store check`: content and faults of a store."""

import asyncio
import hashlib
import json
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from relay import __version__
from relay.cli import main
from relay.core import sample_events
from relay.core.event import LEAD_CAPTURED, Unreadable
from relay.core.routing import Verdict
from relay.store.integrity import Inspection
from relay.store.sqlite import disk, engine, schema
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore
from tests import service
from tests.app.reloading import body
from tests.caller import post
from tests.conftest import NOW_MS, ManualClock
from tests.operator import ADMIN, TOKEN
from tests.stub_server import StubServer

Check = Callable[..., Result]

_MIGRATIONS = Path(schema.__file__).with_name("migrations")
NEWEST = max(int(file.name[:4]) for file in _MIGRATIONS.glob("*.sql"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "relay.db"


@pytest.fixture
def check(tmp_path: Path, path: Path) -> Check:
    config = tmp_path / "config.toml"
    config.write_text(
        f'[store]\npath = "{path}"\nmin_free = "1MiB"\n'
        '[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = ["a-secret-of-sixteen"]\n',
        encoding="utf-8",
    )

    def check(*arguments: str) -> Result:
        command = ["store", "check", "--config", str(config), *arguments]
        return CliRunner().invoke(main, command)

    return check


async def opened(path: Path) -> SqliteStore:
    return await open_store(SqliteSettings(path=str(path)), clock=ManualClock())


async def filled(path: Path, *, events: int) -> SqliteStore:
    """Two sinks take each event; the rule of one fails."""
    store = await opened(path)
    verdicts = (Verdict("sales", "takes", ""), Verdict("crm", "fails", "when failed"))
    for number in range(events):
        event = sample_events.event(LEAD_CAPTURED, source="main", event_id=f"evt_{number}")
        await store.accept(event, verdicts, lambda _: None)
    request = Unreadable(source="main", received_ms=NOW_MS, body=b"?", headers=b"", reason="odd")
    await store.keep(request, lambda _: None)
    return store


async def test_a_sound_store_is_counted(path: Path, check: Check) -> None:
    await (await filled(path, events=3)).close()
    result = await asyncio.to_thread(check)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"{path}: sound"
    assert [line.split() for line in lines[1:-1]] == [
        ["schema", str(NEWEST)],
        ["events", "3"],
        ["deliveries", "3", "pending,", "0", "delivered,", "3", "dead,", "0", "discarded"],
        ["sink", "sales", "3", "pending,", "0", "dead"],
        ["sink", "crm", "0", "pending,", "3", "dead"],
        ["unreadable", "1"],
    ]


async def test_the_counts_are_available_as_json(path: Path, check: Check) -> None:
    await (await filled(path, events=2)).close()
    size = disk.size_bytes(path)
    document = json.loads((await asyncio.to_thread(check, "--json")).stdout)
    assert document["ok"]
    assert document["faults"] == []
    assert (document["schema"], document["events"], document["unreadable"]) == (NEWEST, 2, 1)
    assert document["deliveries"] == {"pending": 2, "delivered": 0, "dead": 2, "discarded": 0}
    assert document["sinks"]["crm"] == {"pending": 0, "dead": 2}
    assert document["size_bytes"] == size


async def test_a_running_relay_checks_its_own_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened_here(_: SqliteSettings) -> Inspection:
        raise AssertionError

    monkeypatch.setattr(engine, "inspect", opened_here)
    settings = service.read(tmp_path, tables=ADMIN)
    async with service.serving(settings) as running:
        assert (await running.ask(post(body("a")))).status == 202
        result = await asyncio.to_thread(check_beside, running, tmp_path)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["ok"], document["events"], document["schema"]) == (True, 1, NEWEST)
    assert document["file"] == str(service.store_file(settings))
    assert document["size_bytes"] > 0


def check_beside(running: service.Relay, folder: Path, admin: str = ADMIN) -> Result:
    """Run the command on a running relay's store, without the sinks' secrets."""
    file = folder / "shell.toml"
    file.write_text(
        f'[server]\nadmin_listen = "127.0.0.1:{running.service.admin.port}"\n'
        f'[store]\npath = "{folder}/relay.db"\n{admin}'
        '[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = ["env:NOT_IN_THIS_SHELL"]\n',
        encoding="utf-8",
    )
    return CliRunner().invoke(main, ["store", "check", "--config", str(file), "--json"])


async def test_an_unreachable_running_relay_is_an_error(
    tmp_path: Path,
) -> None:
    async with service.serving(service.read(tmp_path, tables=ADMIN)) as running:
        result = await asyncio.to_thread(check_beside, running, tmp_path, admin="")
    assert result.exit_code == 1
    assert "[admin] token is not set" in result.output
    assert result.stdout == ""


async def test_a_locked_store_without_a_responding_relay_is_not_read(
    path: Path, check: Check, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with (tmp_path / "config.toml").open("a", encoding="utf-8") as config:
        config.write(f'[server]\nadmin_listen = "127.0.0.1:{port}"\n{ADMIN}')
    store = await filled(path, events=1)
    try:
        result = await asyncio.to_thread(check)
    finally:
        await store.close()
    assert result.exit_code == 1
    assert "cannot connect to the relay" in result.output
    assert (await asyncio.to_thread(check)).exit_code == 0


async def test_the_check_changes_nothing(path: Path, check: Check) -> None:
    await (await filled(path, events=1)).close()
    before = _digest(path)
    assert (await asyncio.to_thread(check)).exit_code == 0
    assert _digest(path) == before
    assert await _is_clean(path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def _is_clean(path: Path) -> bool:
    store = await opened(path)
    await store.close()
    return not store.unclean


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_missing_store_is_one_line(path: Path, check: Check, arguments: tuple[str, ...]) -> None:
    result = check(*arguments)
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert "no such file" in result.output
    assert not path.exists()


async def test_a_damaged_store_shows_its_faults(path: Path, check: Check) -> None:
    await (await filled(path, events=200)).close()
    _damage(path, table="attempts")
    result = await asyncio.to_thread(check)
    assert result.exit_code == 1
    assert "fault" in result.stdout
    assert "Traceback" not in result.output


def _damage(path: Path, *, table: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        query = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        (root,) = db.execute(query, (table,)).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)


async def test_damaged_bodies_are_faults_with_their_ids(
    path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.sqlite.digests.STEP_ROWS", 3)
    await (await filled(path, events=8)).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE events SET body = x'20' WHERE id IN ('evt_2', 'evt_6')")
        db.execute("UPDATE events SET body = NULL, headers = NULL WHERE id = 'evt_4'")
        db.execute("UPDATE unreadable SET body = x'21'")
    result = await asyncio.to_thread(check)
    assert result.exit_code == 1
    faults = [line.split(maxsplit=1)[1] for line in result.stdout.splitlines() if "fault " in line]
    assert [fault.partition(":")[0] for fault in faults] == [
        "event evt_2 of source main",
        "event evt_6 of source main",
        f"unreadable request {hashlib.sha256(b'?').hexdigest()[:12]} of source main",
    ]
    assert all("damaged" in fault and "backup" in fault for fault in faults)


async def test_deliveries_without_an_event_are_a_fault(path: Path, check: Check) -> None:
    await (await filled(path, events=2)).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM events WHERE id = 'evt_0'")
        db.commit()
    result = await asyncio.to_thread(check)
    assert result.exit_code == 1
    assert "2 faults" in result.stdout
    assert "refers to a missing event" in result.stdout


async def test_a_store_of_a_newer_relay_is_a_fault(path: Path, check: Check) -> None:
    await (await opened(path)).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO migrations VALUES (99, '0099_later.sql', '', 0)")
        db.commit()
    result = await asyncio.to_thread(check)
    assert result.exit_code == 1
    assert "its schema is number 99, this relay knows up to" in result.stdout


@pytest.mark.parametrize("content", [b"", b"This is a text about bees." * 400])
def test_a_file_that_is_not_a_store_is_one_line(path: Path, check: Check, content: bytes) -> None:
    path.write_bytes(content)
    result = check()
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert path.read_bytes() == content


async def test_an_incomplete_copy_leaves_no_file(tmp_path: Path) -> None:
    destination = StubServer()
    head = f"HTTP/1.1 200 OK\r\nrelay-version: {__version__}\r\ncontent-length: 1000\r\n\r\n"
    destination.reply = lambda _: head.encode() + b"the beginning"
    copy = tmp_path / "copy.db"
    async with destination:
        command = ["store", "backup", str(copy), "--url", destination.url(""), "--token", TOKEN]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
        copy.write_bytes(b"kept")
        again = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert (result.exit_code, again.exit_code) == (1, 1)
    assert copy.read_bytes() == b"kept"
    assert len(destination.requests) == 1
