"""`relay demo`, run as a newcomer runs it."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import orjson
import pytest
from click.testing import CliRunner

from relay.cli import main
from relay.cli.demo.environment import Listening

pytestmark = pytest.mark.servers

DEADLINE_S = 20
RELAY = [sys.executable, "-m", "relay"]
COMMAND = [*RELAY, "demo"]
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def demo(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TMPDIR": str(folder)}
    command = [*COMMAND, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def on_a_terminal(*arguments: str, folder: Path, **environ: str) -> str:
    """Run a demo to its end; return what the terminal was sent."""
    master, slave = pty.openpty()
    environment = os.environ | {"TMPDIR": str(folder)} | environ
    environment.pop("COLUMNS", None)
    command = [*COMMAND, *arguments]
    with subprocess.Popen(command, env=environment, stdout=slave, stderr=slave) as process:
        os.close(slave)
        text = _all_of(master)
        assert process.wait(DEADLINE_S) == 0
    return text


def relay(*arguments: str) -> None:
    subprocess.run([*RELAY, *arguments], capture_output=True, timeout=DEADLINE_S, check=True)


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"TMPDIR": str(folder)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, "--every", "0.2"], env=environment, text=True, **pipes) as it:  # type: ignore[call-overload]
        try:
            yield it
        finally:
            it.kill()


def read_until(stream: IO[str] | None, text: str) -> list[str]:
    assert stream is not None
    lines: list[str] = []
    for line in stream:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"never came: {text}, only {lines}")


def addresses(opening: list[str]) -> dict[str, str]:
    words = [line.split() for line in opening if line.startswith("  ")]
    return {words[0]: words[1] for words in words if len(words) == 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the short demo keeps its files."""
    return tmp_path_factory.mktemp("short")


@pytest.fixture(scope="module")
def short(folder: Path) -> subprocess.CompletedProcess[str]:
    """A demo of four events."""
    return demo("--events", "4", "--every", "0", folder=folder)


def test_the_first_line_opens_the_page(tmp_path: Path) -> None:
    with running(tmp_path) as demo:
        line = read_until(demo.stderr, "Open ")[0]
        _, url, *_, token = line.split()
        headers = {"Origin": url.rstrip("/")}
        with httpx.Client(base_url=url, headers=headers, follow_redirects=True) as client:
            page = client.post("/login", data={"token": token})
    assert page.status_code == 200
    assert "All is well" in page.text or "Waiting for the first event" in page.text


def test_an_event_a_duplicate_and_a_forgery_are_shown(
    short: subprocess.CompletedProcess[str],
) -> None:
    assert short.returncode == 0
    story = [line[10:] for line in short.stderr.splitlines() if line[:2].strip().isdigit()]
    first, second, *rest = [re.split(r"  +", line)[0::2][:2] for line in story]
    # The service sends both at once.
    assert [*sorted([first, second]), *rest] == [
        ["lead.captured", "202 accepted"],
        ["video.watched", "202 accepted"],
        ["the same again", "200 duplicate"],
        ["forged", "401 unauthorized"],
    ]
    assert "Delivered: 2, duplicates: 1, forged: 1." in short.stderr


def test_the_sinks_lines_are_on_stdout_and_nothing_else(
    short: subprocess.CompletedProcess[str],
) -> None:
    events = [orjson.loads(line) for line in short.stdout.splitlines()]
    assert sorted(event["event"] for event in events) == ["lead.captured", "video.watched"]
    assert all(event["id"] in short.stderr for event in events)


def test_the_demo_removes_its_files(short: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert short.returncode == 0
    assert list(folder.iterdir()) == []


def test_the_opening_has_every_kind_then_suggests_commands_and_then_viewers_watch(
    tmp_path: Path,
) -> None:
    result = demo("--events", "13", "--every", "0", "--viewers", "300", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    opening, _, watched = result.stderr.partition("Ctrl-C ends the demo")
    assert watched, result.stderr
    assert opening.index("webhook.test") < opening.index("Now 300 viewers come.")
    events = [orjson.loads(line) for line in result.stdout.splitlines()]
    assert len({event["event"] for event in events if event["id"] in opening}) == 7
    lines = [line.split() for line in watched.splitlines() if line[:2].isdigit()]
    assert [(line[1], line[3]) for line in lines] == [("video.watched", "202")] * 3


def test_the_relay_is_an_endpoint_of_the_service(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        urls = addresses(read_until(process.stderr, "TIME"))
        command = "".join(read_until(process.stderr, "Authorization"))
        key = command.rpartition("Bearer ")[2].split("'")[0]
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=urls["service"], headers=headers, trust_env=False) as client:
            (webhook,) = client.get("/v1/webhooks").json()["webhooks"]
            deliveries = client.get(f"/v1/webhooks/{webhook['id']}/deliveries").json()
    assert webhook["url"] == urls["webhooks"]
    assert {each["state"] for each in deliveries["deliveries"]} == {"delivered"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_exits_with_0(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path) as process:
        read_until(process.stderr, "202 accepted")
        process.send_signal(number)
        _, rest = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert "Stopped and drained." in rest
    assert list(tmp_path.iterdir()) == []


def test_a_signal_during_the_start_exits_with_0(tmp_path: Path) -> None:
    script = """
import os, signal
from relay.cli import main
from relay.app.service import Service

opening = Service.open

async def interrupted(*arguments, **named):
    service = await opening(*arguments, **named)
    os.kill(os.getpid(), signal.SIGINT)
    return service

Service.open = interrupted
main(["demo"])
"""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "")
    assert "Stopped and drained. Delivered: 0" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pace", ["nan", "-1", "inf", "soon"])
def test_an_invalid_interval_is_a_usage_error(tmp_path: Path, pace: str) -> None:
    result = CliRunner(env={"TMPDIR": str(tmp_path)}).invoke(main, ["demo", "--every", pace])
    assert result.exit_code == 2
    assert "--every" in result.stderr


def test_the_suggested_commands_work(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        urls = addresses(read_until(process.stderr, "TIME"))
        folder = Path(urls["config"]).parent
        secret = (folder / "secret").read_text(encoding="utf-8").strip()
        tries = "".join(read_until(process.stderr, "Ctrl-C"))
        assert f"send lead.captured --url {urls['webhooks']}" in tries
        relay("send", "all", "--url", urls["webhooks"], "--secret", f"file:{folder}/secret")
        relay("check-config", "--config", urls["config"])
        relay("store", "check", "--config", urls["config"])
        counted = httpx.get(urls["metrics"], trust_env=False).text
        assert httpx.get(urls["health"], trust_env=False).status_code == 200
        output = read_until(process.stderr, "yours: delivered")
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=DEADLINE_S)
    assert re.search(r'relay_events_total\{.*outcome="accepted".*\} [1-9]', counted)
    assert secret not in "".join([tries, *output, rest, counted])


def test_ports_in_use_are_avoided(tmp_path: Path) -> None:
    with Listening.opened() as other:
        result = demo("--events", "1", folder=tmp_path)
        for each in (other.public, other.admin, other.service):
            assert f"127.0.0.1:{each.getsockname()[1]}" not in result.stderr
    assert result.returncode == 0
    assert "202 accepted" in result.stderr


def test_demos_that_start_at_once_take_different_ports() -> None:
    with Listening.opened() as one, Listening.opened() as other:
        listening = (one.public, one.admin, one.service, other.public, other.admin, other.service)
        assert len({each.getsockname() for each in listening}) == 6


def test_on_a_terminal_every_line_fits_in_80_columns_and_has_colours(tmp_path: Path) -> None:
    coloured = on_a_terminal("--events", "4", "--every", "0", folder=tmp_path, NO_COLOR="")
    lines = ANSI.sub("", coloured).splitlines()
    assert "\x1b[" in coloured
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
    assert len([line for line in lines if "stdout sink" in line]) == 2
    assert not any(line.startswith("{") for line in lines)


def test_on_a_terminal_colours_can_be_disabled(tmp_path: Path) -> None:
    assert "\x1b[" not in on_a_terminal("--events", "1", folder=tmp_path, NO_COLOR="1")


def _all_of(master: int) -> str:
    content = b""
    deadline_s = time.monotonic() + DEADLINE_S
    while select.select([master], [], [], max(0, deadline_s - time.monotonic()))[0]:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # what Linux says when the other side is closed
            break
        content += chunk
    os.close(master)
    return content.decode()


def test_a_closed_pipe_ends_it_quietly(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        rest = process.stderr.read()
        process.wait(DEADLINE_S)
    assert "Traceback" not in rest
    assert "fault" not in rest
    assert list(tmp_path.iterdir()) == []
