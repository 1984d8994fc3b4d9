"""`relay rotate` on a running relay: what is kept, and what is refused."""

import json
from pathlib import Path

import pytest

from relay.admin.api import sources
from relay.cli.rotate import command as rotate
from tests.cli.scene import Scene, plain
from tests.guarantees.process import SECRET, Relay
from tests.guarantees.traffic import lead, post
from tests.operator import ADMIN


@pytest.mark.servers
async def test_kept_requests_are_counted_by_outcome(tmp_path: Path) -> None:
    scene, secret = Scene(tmp_path), tmp_path / "secret"
    secret.write_text("the-secret-that-was-before", encoding="utf-8")
    async with Relay(tmp_path, sinks="", rest=ADMIN, secret=f"file:{secret}") as relay:
        await relay.start()
        await scene.run("rotate begin --source main")
        for event_id in ("a", "b", "a"):
            assert (await post(relay.url, lead(event_id))).status_code == 401
        secret.write_text("a-secret-that-was-mistyped", encoding="utf-8")
        printed = await scene.run("rotate finish --source main")
        assert [plain(line) for line in printed[:5]] == [
            "main: finished",
            "kept 3",
            "verified 0",
            "duplicates 0",
            "unverified 3",
        ]
        assert "match no secret of main" in printed[5]
        assert (await scene.run("rotate status --source main"))[0] == (
            "main: finished, keeps no further requests"
        )
        secret.write_text(SECRET, encoding="utf-8")
        (line,) = await scene.run("rotate finish --source main --json")
        finished = json.loads(line)
        counts = {name: finished[name] for name in ("kept", "verified", "duplicates", "waiting")}
        assert counts == {"kept": 3, "verified": 3, "duplicates": 1, "waiting": 0}


def test_the_command_and_the_api_have_the_same_maximum() -> None:
    assert rotate.FOR_MAX == sources.DURATION_MAX_MS


@pytest.mark.servers
async def test_an_impossible_rotation_is_refused(scene: Scene) -> None:
    for command, message in (
        ("finish --source main", "relay: No rotation of main is running"),
        ("begin --source nobody", "relay: There is no source nobody in the config."),
        ("begin --source main --for 2h", "Error: Invalid value for '--for': expected 1s to"),
        ("begin --source main --for soon", "Error: Invalid value for '--for'"),
        ("status --source main", "main: no rotation, or it has expired."),
    ):
        printed = await scene.run(f"rotate {command}")
        assert any(line.startswith(message) for line in printed), printed
