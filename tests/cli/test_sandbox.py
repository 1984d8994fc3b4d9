"""`relay sandbox`, run as a developer runs it."""

import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from relay.cli import main

pytestmark = pytest.mark.long

DEADLINE_S = 20
COMMAND = [sys.executable, "-m", "relay", "sandbox", "--listen", "127.0.0.1:0"]
EMPTY = ["--viewers", "0", "--videos", "0"]


class Started:
    """A sandbox process with what it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.printed = self._read()
        (self.url,) = re.findall(r"listens on (\S+)", self.printed)
        pattern = r"^  (Read only|Read & write videos|Admin) +(\S+)$"
        self.keys = dict(re.findall(pattern, self.printed, re.MULTILINE))

    def _read(self) -> str:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        return "".join(lines)

    def get(self, path: str, access: str = "Admin") -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.keys[access]}"}
        return httpx.get(f"{self.url}{path}", headers=headers, trust_env=False)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@contextmanager
def running(*arguments: str) -> Iterator[Started]:
    command = [*COMMAND, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Started(process)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_what_a_developer_needs_and_stops_at_a_signal(number: signal.Signals) -> None:
    with running() as started:
        assert list(started.keys) == ["Read only", "Read & write videos", "Admin"]
        assert started.get("/v1/videos", "Read only").json()["next"] is None
        assert started.get("/v1/webhooks", "Read only").status_code == 403
        assert started.get("/v1/openapi.json").json()["openapi"] == "3.1.0"
        assert started.stop(number) == 0


def test_the_opening_leads_to_a_registered_relay(tmp_path: Path) -> None:
    """The table goes into a config; the commands then run as they are printed."""
    config = tmp_path / "config.toml"
    with running("--speed", "200") as started:
        (table,) = re.findall(r"^  \[source\.api\]\n(?:  .+\n)+", started.printed, re.MULTILINE)
        (export,) = re.findall(r"^  (export .+)$", started.printed, re.MULTILINE)
        commands = re.findall(r"^  relay (.+)$", started.printed, re.MULTILINE)
        register, check, serve, test, reconcile = commands

        def run(command: str) -> str:
            done = subprocess.run(
                ["sh", "-c", f"{export} && exec {sys.executable} -m relay {command}"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=True,
            )
            return done.stdout

        source = '[[source]]\nname = "main"\npath = "/webhooks"\n'
        config.write_text(f"{source}{table}", encoding="utf-8")
        printed = run(register)
        (secrets,) = re.findall(r"^  (secrets = .+)$", printed, re.MULTILINE)
        (endpoint,) = re.findall(r"^  (endpoint = .+)$", printed, re.MULTILINE)
        sink = '[[sink]]\nname = "all"\ntype = "stdout"\n'
        config.write_text(f"{source}{secrets}\n{table}{endpoint}\n{sink}", encoding="utf-8")
        checked = run(check)
        assert "the key works and may read analytics; endpoint" in checked
        assert "a webhook.test" in run(test)
        (webhook,) = started.get("/v1/webhooks").json()["webhooks"]
    assert webhook["url"] == "http://127.0.0.1:8080/webhooks"
    assert (config.parent / "sandbox-secret").stat().st_mode & 0o777 == 0o600
    assert tomllib.loads(table)["source"]["api"]["give_up_after"] == "4s"
    # The test of the documentation's first steps runs these two.
    assert serve == "serve"
    assert reconcile.startswith("reconcile --since ")


def test_a_restart_on_the_same_state_has_the_same_keys_and_videos(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    with running("--state", path, "--viewers", "0") as started:
        keys = started.keys
        answer = httpx.post(f"{started.url}/sandbox/videos", json={"title": "A"}, trust_env=False)
        assert answer.status_code == 201
        videos = started.get("/v1/videos").json()
        assert started.stop() == 0
    with running("--state", path, "--viewers", "0") as started:
        assert len(videos["videos"]) == 13
        assert started.keys == keys
        assert started.get("/v1/videos").json() == videos


def test_viewers_watch_its_videos() -> None:
    with running("--speed", "3600", "--videos", "3") as started:
        until = time.monotonic() + DEADLINE_S
        sessions: list[object] = []
        while not sessions and time.monotonic() < until:
            sessions = started.get("/v1/analytics/sessions").json()["sessions"]
            time.sleep(0.1)
        assert sessions
        assert len(started.get("/v1/videos").json()["videos"]) >= 3


def test_a_kill_keeps_what_was_answered(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    with running("--state", path, *EMPTY) as started:
        httpx.post(f"{started.url}/sandbox/videos", json={"title": "A"}, trust_env=False)
        started.stop(signal.SIGKILL)
    with running("--state", path, *EMPTY) as started:
        assert [each["title"] for each in started.get("/v1/videos").json()["videos"]] == ["A"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--listen", "nowhere"], "--listen"),
        (["--speed", "0"], "--speed"),
        (["--speed", "nan"], "--speed"),
    ],
)
def test_a_wrong_option_is_a_usage_error(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(main, ["sandbox", *arguments])
    assert done.exit_code == 2
    assert text in done.stderr


def test_an_invalid_state_file_and_an_address_in_use_are_named(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[server]")
    command = [*COMMAND, "--state", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert done.stderr == f"relay: {path}: not the state of a sandbox; name another file\n"
    with running() as started:
        address = started.url.removeprefix("http://")
        command = [*COMMAND, "--listen", address]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    assert done.returncode == 71
    assert done.stderr == f"relay: cannot listen on {address}: Address already in use\n"
