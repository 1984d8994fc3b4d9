import asyncio
import os
import shutil
import stat
from pathlib import Path

import msgspec
import orjson
import pytest

from relay.core.clock import SystemClock
from relay.sandbox import state
from relay.sandbox.errors import StateUnusable
from relay.sandbox.model import Workspace
from tests.conftest import NOW_MS
from tests.sandbox.service import serving
from tests.sandbox.stepped_clock import SteppedClock
from tests.stub_server import Reply, StubServer, until

pytestmark = pytest.mark.servers


def read(path: Path) -> Workspace:
    workspace = state.read(path)
    assert workspace is not None
    return workspace


async def test_a_restart_goes_on_with_attempts_and_processing(tmp_path: Path) -> None:
    path, clock = tmp_path / "state.json", SteppedClock(NOW_MS)
    async with StubServer() as destination:
        destination.reply = lambda _: Reply(503)
        async with serving(state=path, clock=clock) as served:
            webhook = await served.register(destination.url(), "video.created", "video.ready")
            body = {"url": "https://files.example.com/tour.mp4"}
            await served.ask("POST", "/v1/videos/import", json=body)
            await served.step(10)
            keys = served.sandbox.workspace.keys
        clock.step_to(NOW_MS + 3_600_000)
        async with serving(read(path), state=path, clock=clock) as served:
            assert served.sandbox.workspace.keys == keys
            await served.step(9)
            assert len(destination.requests) == 1
            await served.step(1)
            assert len(destination.requests) == 2
            destination.reply = lambda _: Reply(200)
            await served.step(600)
            states = [each["state"] for each in await served.deliveries(webhook["id"])]
            videos = (await served.ask("GET", "/v1/videos")).json()["videos"]
    kinds = [orjson.loads(request.body)["event"] for request in destination.requests]
    assert kinds == ["video.created", "video.created", "video.created", "video.ready"]
    assert states == ["delivered", "delivered", "failed", "failed"]
    assert [video["status"] for video in videos] == ["ready"]


async def test_an_attempt_that_a_stop_cut_off_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    async with serving(state=path) as served:
        webhook = await served.register("http://127.0.0.1:1/", "webhook.test")
        await served.ask("POST", f"/v1/webhooks/{webhook['id']}/test")
    workspace = read(path)
    assert [each.next_number for each in workspace.outbox] == [1]
    async with StubServer() as destination, serving(workspace, state=path) as served:
        workspace.endpoints[webhook["id"]].url = destination.url()
        await served.step(0)
        assert len(destination.requests) == 1


async def test_a_change_is_on_disk_before_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    async with serving(state=path) as served:
        webhook = await served.register("http://127.0.0.1:1/")
        assert list(read(path).endpoints) == [webhook["id"]]
        video = await served.add()
        assert list(read(path).videos) == [video["id"]]


async def test_in_real_time_the_file_follows_the_events(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    async with serving(state=path, clock=SystemClock(), speed=600) as served:
        body = {"url": "https://files.example.com/tour.mp4"}
        await served.ask("POST", "/v1/videos/import", json=body)

        def is_ready() -> bool:
            return [video.status for video in read(path).videos.values()] == ["ready"]

        await until(is_ready, what="the processed video in the file")


async def test_a_file_that_can_no_longer_be_written_ends_the_sandbox(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    async def run() -> None:
        async with serving(state=folder / "state.json", clock=SystemClock()) as served:
            await until((folder / "state.json").exists, what="the first write")
            shutil.rmtree(folder)
            served.sandbox.schedule.after(0, lambda: None)
            await asyncio.Event().wait()

    with pytest.raises(StateUnusable, match="No such file or directory"):
        await run()


async def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    before = os.umask(0)
    try:
        async with serving(state=path):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"videos": 3}', b"\xff"])
def test_an_invalid_state_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(StateUnusable, match=r"state\.json: not the state of a sandbox"):
        state.read(path)


async def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateUnusable, match="No such file or directory"):
        async with serving(state=tmp_path / "missing" / "state.json"):
            pass


def test_a_missing_file_means_no_state(tmp_path: Path) -> None:
    assert state.read(tmp_path / "state.json") is None


def test_a_workspace_reads_back_as_it_was_written() -> None:
    workspace = Workspace(seed=3)
    assert msgspec.json.decode(msgspec.json.encode(workspace), type=Workspace) == workspace
