"""Commands with closed standard streams."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relay.core.event import LEAD_CAPTURED
from tests.guarantees.process import DEADLINE_S, Relay, until
from tests.guarantees.traffic import lead, post

pytestmark = pytest.mark.servers

CLOSED = ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]

SINK = f'[[sink]]\nname = "console"\ntype = "stdout"\nevents = ["{LEAD_CAPTURED}"]\n'


def prefix(closed: str) -> list[str]:
    return ["sh", "-c", f'exec "$0" "$@" {closed}']


@pytest.mark.parametrize("closed", CLOSED)
async def test_serve_runs_and_drains_without_a_stream(tmp_path: Path, closed: str) -> None:
    async with Relay(tmp_path, sinks="", prefix=prefix(closed)) as relay:
        await relay.start()
        assert (await post(relay.url, lead("evt_1"))).status_code == 202
        assert await relay.stop() == 0


async def test_an_event_for_a_closed_stdout_is_not_delivered(tmp_path: Path) -> None:
    async with Relay(tmp_path, sinks=SINK, prefix=prefix(">&-")) as relay:
        await relay.start()
        assert (await post(relay.url, lead("evt_1"))).status_code == 202

        async def is_parked() -> bool:
            parked = await relay.metric("relay_sink_state", sink="console", state="parked")
            pending = await relay.metric("relay_pending_deliveries", sink="console")
            return (parked, pending) == (1, 1)

        await until(is_parked, what="a sink that is parked, with its backlog")
        assert await relay.metric("relay_deliveries_total", outcome="delivered") == 0
        assert await relay.stop() == 0


def test_the_demo_ends_with_0_and_removes_its_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "relay", "demo", "--events", "2", "--every", "0"]
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.run(
        [*prefix("<&- >&- 2>&-"), *command],
        env=environ,
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert process.returncode == 0, process.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("closed", CLOSED)
def test_an_error_keeps_its_exit_code(tmp_path: Path, closed: str) -> None:
    command = [sys.executable, "-m", "relay", "serve", "--config", str(tmp_path / "none.toml")]
    process = subprocess.run(
        [*prefix(closed), *command], capture_output=True, check=False, timeout=DEADLINE_S
    )
    assert process.returncode == os.EX_CONFIG
    if "2>" not in closed:
        assert b"none.toml" in process.stderr


def test_a_closed_stdin_is_empty(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "relay", "verify", "--secret", "a-secret-of-sixteen"]
    command += ["--header", "t=1,v1=00", "--body", "-"]
    process = subprocess.run(
        [*prefix("<&-"), *command], capture_output=True, check=False, timeout=DEADLINE_S
    )
    assert process.returncode == 1
    assert b"internal error" not in process.stderr
