"""One store by two names: whatever they are, a second relay does not start on it."""

import os
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.guarantees.process import Relay, until
from tests.guarantees.traffic import lead, post

_BIND = 'touch "$2" && mount --bind "$1" "$2" && shift 2 && exec "$@"'
_WAYS = (("unshare", "-rm"), ("unshare", "-m"))


async def _refusal(relay: Relay) -> tuple[int, str]:
    await relay.spawn()
    return await relay.exit(), relay.output()


async def _assert_still_takes(relay: Relay) -> None:
    answer = await post(relay.url, lead("evt_after"))
    assert answer.status_code == httpx.codes.ACCEPTED


async def test_a_hard_link_to_the_store_of_a_running_relay_is_refused(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    async with Relay(tmp_path, sinks="") as first, Relay(tmp_path / "second", sinks="") as second:
        await first.start()
        second.store.parent.mkdir()
        os.link(first.store, second.store)
        code, output = await _refusal(second)
        assert code == os.EX_CONFIG
        assert f"{second.store} has 2 hard links" in output
        assert "Traceback" not in output
        await _assert_still_takes(first)


async def test_a_symbolic_link_to_the_store_of_a_running_relay_is_refused(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    async with Relay(tmp_path, sinks="") as first, Relay(tmp_path / "second", sinks="") as second:
        await first.start()
        second.store.parent.symlink_to(first.store.parent)
        code, output = await _refusal(second)
        assert code == os.EX_TEMPFAIL
        assert "another relay holds the store" in output
        await _assert_still_takes(first)


async def test_a_store_that_is_mounted_without_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    async with Relay(tmp_path, sinks="") as first:
        await first.start()
        mounted = tmp_path / "second" / "data" / "relay.db"
        mounted.parent.mkdir()
        bind = ("sh", "-c", _BIND, "sh", str(first.store), str(mounted))
        second = Relay(tmp_path / "second", sinks="", prefix=(*_unshare(), *bind))
        async with second:
            code, output = await _refusal(second)
        assert code == os.EX_CONFIG
        assert f"{mounted} is mounted without its folder" in output
        await until(first.is_ready, what="/readyz of the first")
        await _assert_still_takes(first)


def _unshare() -> tuple[str, ...]:
    for way in _WAYS:
        if subprocess.run([*way, "true"], check=False, capture_output=True).returncode == 0:
            return way
    reason = "no file can be mounted here: needs root or user namespaces"
    if os.environ.get("RELAY_REQUIRE_SERVERS"):
        pytest.fail(reason)
    pytest.skip(reason)
