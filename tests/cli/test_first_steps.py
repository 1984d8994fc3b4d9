"""The commands of the documentation lead a developer to a reconstructed event."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import orjson
import pytest

from tests.ports import free_port

pytestmark = pytest.mark.long

DEADLINE_S = 60.0
PAGE = Path(__file__).parents[2] / "docs" / "video-service.md"
SECTION = re.search(r"^### Try it\n(.*?)^### ", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def until(fact: Callable[[], object], *, what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < end_s, f"never came: {what}"
        time.sleep(0.05)


class Developer:
    """Does what the page says, on free ports and in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        assert SECTION is not None
        places = {
            "127.0.0.1:8090": f"127.0.0.1:{free_port()}",
            "127.0.0.1:8080": f"127.0.0.1:{free_port()}",
            "/tmp/relay-sandbox-secret": str(folder / "secret"),  # noqa: S108  as documented
        }
        text = SECTION[1]
        for documented, own in places.items():
            text = text.replace(documented, own)
        (config,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
        (commands,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        sandbox, public = places["127.0.0.1:8090"], places["127.0.0.1:8080"]
        listen = f'listen = "{public}"\nadmin_listen = "127.0.0.1:{free_port()}"\n'
        (folder / "config.toml").write_text(f"[server]\n{listen}{config}", encoding="utf-8")
        self.commands: list[str] = commands.strip().splitlines()
        self.options = {"sandbox": ["--listen", sandbox]}
        self.folder = folder
        self.environ = {**os.environ, "RELAY_CONFIG": "config.toml"}

    def arguments(self, number: int) -> list[str]:
        _, name, *rest = self.commands[number - 1].split()
        return [sys.executable, "-m", "relay", name, *rest, *self.options.get(name, ())]

    def run(self, number: int) -> str:
        done = subprocess.run(
            self.arguments(number),
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, number: int) -> Iterator[Path]:
        """Run a command in a terminal of its own; yields the file of its output."""
        output = self.folder / f"output-{number}"
        with (
            output.open("wb") as file,
            subprocess.Popen(
                self.arguments(number), cwd=self.folder, env=self.environ, stdout=file, stderr=file
            ) as process,
        ):
            try:
                yield output
            finally:
                process.terminate()
                process.wait(DEADLINE_S)


def test_five_commands_lead_to_a_reconstructed_event(tmp_path: Path) -> None:
    developer = Developer(tmp_path)
    assert len(developer.commands) == 5
    assert developer.commands[0] == "pip install ."  # as these tests were installed
    with ExitStack() as terminals:
        printed = terminals.enter_context(developer.running(2))
        until(lambda: "Ctrl-C" in printed.read_text("utf-8"), what="the sandbox's keys")
        (key,) = re.findall(r"^  Admin +(\S+)$", printed.read_text("utf-8"), re.MULTILINE)
        developer.environ["API_KEY"] = key
        developer.run(3)
        relay = terminals.enter_context(developer.running(4))
        until(lambda: "relay.ready" in relay.read_text("utf-8"), what="the relay")
        until(lambda: _has_given(developer), what="a reconstructed event")
        until(lambda: any(map(_is_reconstructed, _lines(relay))), what="the event's line")


def _has_given(developer: Developer) -> bool:
    return " 0 events reconstructed" not in developer.run(5)


def _lines(output: Path) -> list[bytes]:
    return [line for line in output.read_bytes().splitlines() if line.startswith(b'{"source"')]


def _is_reconstructed(line: bytes) -> bool:
    return orjson.loads(line).get("reconstructed") is True
