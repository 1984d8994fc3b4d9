"""`relay send`: requests, output and exit codes."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from relay.cli import main
from relay.cli.send import command
from relay.core import signature
from relay.core.event import KINDS
from tests.stub_server import Reply, Request, StubServer, until

SECRET = "whsec_of_the_test_only"

Send = Callable[..., Awaitable[Result]]


@pytest.fixture
async def relay() -> AsyncIterator[StubServer]:
    """A server that responds like a relay."""
    known: set[bytes] = set()

    def reply(request: Request) -> Reply:
        word = "duplicate" if request.body in known else "accepted"
        known.add(request.body)
        return Reply({"accepted": 202, "duplicate": 200}[word], b'{"status":"%b"}' % word.encode())

    async with StubServer() as peer:
        peer.reply = reply
        yield peer


@pytest.fixture
def send(relay: StubServer) -> Send:
    """Run the command in a thread, because it runs its own event loop."""

    async def send(*arguments: str, stdin: bytes | None = None) -> Result:
        line = ["send", "--url", relay.url("/webhooks"), *arguments]
        runner = CliRunner(env={"RELAY_SECRET": SECRET})
        return await asyncio.to_thread(runner.invoke, main, line, input=stdin)

    return send


async def test_one_event_is_signed_sent_and_reported(relay: StubServer, send: Send) -> None:
    result = await send("lead.captured")
    (request,) = relay.requests
    event = orjson.loads(request.body)
    assert result.exit_code == 0
    assert event["event"] == "lead.captured"
    for part in ("lead.captured", event["id"], "202 accepted", " ms"):
        assert part in result.stdout
    parsed = signature.parse(request.header["service-signature"].encode())
    assert parsed.candidates == (signature.sign(SECRET.encode(), parsed.timestamp, request.body),)


async def test_all_sends_one_event_of_each_kind(relay: StubServer, send: Send) -> None:
    result = await send("all")
    assert result.exit_code == 0
    assert [orjson.loads(each.body)["event"] for each in relay.requests] == list(KINDS)
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(KINDS)


async def test_every_event_has_an_id_of_its_own(relay: StubServer, send: Send) -> None:
    await send("video.watched", "--count", "20")
    assert len({orjson.loads(each.body)["id"] for each in relay.requests}) == 20


async def test_a_file_is_sent_byte_for_byte(relay: StubServer, send: Send, tmp_path: Path) -> None:
    body = b'\n{ "id" : "\\u0065vt",\r\n"event":"x"}\x00\xff '
    (tmp_path / "body").write_bytes(body)
    result = await send("--data", str(tmp_path / "body"))
    assert result.exit_code == 0
    assert [each.body for each in relay.requests] == [body]


async def test_a_body_can_come_from_stdin(relay: StubServer, send: Send) -> None:
    await send("--data", "-", stdin=b"{}")
    assert [each.body for each in relay.requests] == [b"{}"]


async def test_copies_of_a_file_are_announced_as_duplicates(relay: StubServer, send: Send) -> None:
    result = await send("--data", "-", "--count", "3", stdin=b"{}")
    assert result.exit_code == 0
    assert "all but the first are duplicates" in result.stderr
    assert [line.split() for line in result.stdout.splitlines()[1:4]] == [
        ["accepted", "1"],
        ["duplicates", "2"],
        ["failed", "0"],
    ]


async def test_many_events_end_with_a_summary(send: Send) -> None:
    result = await send("lead.captured", "--count", "30")
    assert result.exit_code == 0
    assert result.stderr == ""
    first, *rest = result.stdout.splitlines()
    assert first.startswith("30 of 30 events in ")
    assert [line.split() for line in rest] == [
        ["accepted", "30"],
        ["duplicates", "0"],
        ["failed", "0"],
    ]


async def test_the_summary_is_available_as_json(send: Send) -> None:
    result = await send("lead.captured", "--count", "5", "--rate", "500", "--json")
    document = json.loads(result.stdout)
    assert (document["ok"], document["acknowledged"], document["attempts"]) == (True, 5, 5)
    assert document["failures"] == []


async def test_single_events_are_available_as_json(send: Send) -> None:
    (event,) = json.loads((await send("lead.captured", "--json")).stdout)["events"]
    assert (event["event"], event["status"], event["outcome"]) == ("lead.captured", 202, "accepted")


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (401, "the secrets differ, or the clocks do"),
        (404, "no source has this path; check the URL"),
        (413, "larger than max_body"),
        (503, "stopping, or its store is full"),
        (307, "a redirect"),
        (418, "not by a relay; check the URL"),
        (500, "not of a relay; check the URL"),
        (600, ""),
    ],
)
async def test_a_refusal_is_explained(
    relay: StubServer, send: Send, status: int, hint: str
) -> None:
    relay.reply = lambda _: Reply(status)
    result = await send("lead.captured")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f" {status}" in result.stderr
    assert hint in result.stderr


async def test_a_refused_connection_is_explained(relay: StubServer, send: Send) -> None:
    await relay.stop()
    result = await send("lead.captured")
    assert result.exit_code == 1
    assert "connection refused: start the relay" in result.stderr
    assert "Traceback" not in result.stderr


async def test_with_retry_the_waits_are_printed(
    relay: StubServer, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "WAITS_S", (0.02, 0.04, 0.08, 0.16, 0.32))
    statuses = iter((503, 503, 202))
    relay.reply = lambda _: Reply(next(statuses))
    result = await send("lead.captured", "--retry")
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stderr.splitlines()]
    assert lines[1] == "again in 0.02 s: attempt 2 of 6"
    assert lines[3] == "again in 0.04 s: attempt 3 of 6"
    assert "202" in result.stdout


async def test_without_retry_there_is_one_attempt(relay: StubServer, send: Send) -> None:
    relay.reply = lambda _: Reply(503)
    await send("lead.captured")
    assert len(relay.requests) == 1


async def test_waiting_for_a_retry_blocks_no_other_event(
    relay: StubServer, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "WAITS_S", (0.5,))
    as_many_as_at_once = command.CONCURRENCY
    relay.reply = lambda _: Reply(503 if len(relay.requests) <= as_many_as_at_once else 202)
    result = await send("lead.captured", "--count", str(as_many_as_at_once + 1), "--retry")
    ids = [orjson.loads(each.body)["id"] for each in relay.requests]
    assert result.exit_code == 0
    assert ids.index(ids[as_many_as_at_once]) == as_many_as_at_once
    assert sorted(ids[as_many_as_at_once + 1 :]) == sorted(ids[:as_many_as_at_once])


async def test_failures_are_summarized_by_cause(relay: StubServer, send: Send) -> None:
    relay.reply = lambda _: Reply(503)
    result = await send("lead.captured", "--count", "4")
    assert result.exit_code == 1
    assert "4 x 503: the relay is stopping" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expectation"),
    [
        ([], "expected an EVENT, or --data FILE"),
        (["video.seen"], "is not one of 'video.created'"),
        (["all", "--secret", "env:NO_SUCH_SECRET"], "NO_SUCH_SECRET is not set"),
        (["all", "--secret", ""], "is empty"),
        (["all", "--rate", "fast"], "expected events per second"),
        (["all", "--rate", "0"], "expected events per second"),
        (["all", "--url", "127.0.0.1:8080"], "expected a URL"),
        (["--data", "no-such-file"], "No such file"),
    ],
)
async def test_bad_arguments_are_usage_errors(
    relay: StubServer, send: Send, arguments: list[str], expectation: str
) -> None:
    result = await send(*arguments)
    assert result.exit_code == 2
    assert expectation in result.stderr
    assert relay.requests == []


@pytest.mark.parametrize("arguments", [("all",), ("all", "--count", "9"), ("all", "--json")])
@pytest.mark.parametrize("status", [202, 401])
async def test_the_secret_is_never_shown(
    relay: StubServer, send: Send, arguments: tuple[str, ...], status: int
) -> None:
    relay.reply = lambda _: Reply(status)
    result = await send(*arguments, "--secret", SECRET)
    assert SECRET not in result.output


@pytest.mark.servers
async def test_ctrl_c_prints_the_summary_so_far(relay: StubServer) -> None:
    started = [sys.executable, "-m", "relay", "send", "all", "--count", "1000", "--rate", "20/s"]
    started += ["--secret", SECRET, "--url", relay.url("/webhooks")]
    process = await asyncio.create_subprocess_exec(
        *started, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    await until(lambda: len(relay.requests) > 1, what="a second request")
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert process.returncode == 130
    assert b" of 1000 events in " in out
    assert b"Traceback" not in err


@pytest.mark.servers
async def test_a_terminal_shows_progress_on_one_line(relay: StubServer) -> None:
    master, slave = pty.openpty()
    started = [sys.executable, "-m", "relay", "send", "all", "--count", "20", "--rate", "100"]
    started += ["--secret", SECRET, "--url", relay.url("/webhooks")]
    process = await asyncio.create_subprocess_exec(*started, stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    await process.communicate()
    output = os.read(master, 65536).decode()
    os.close(master)
    assert process.returncode == 0
    assert "0/20" in output
    assert "20/20" in output
    assert output.count("\n") == 1


def config(folder: Path, relay: StubServer, text: str = "") -> Path:
    path = folder / "config.toml"
    path.write_text(
        f'[server]\nlisten = "127.0.0.1:{relay.port}"\n{text}\n'
        '[[source]]\nname = "main"\npath = "/webhooks"\n'
        f'secrets = [{{ secret = "one-that-is-past-its-end", until = 2020-01-01 }}, "{SECRET}"]\n'
        '[[source]]\nname = "other"\npath = "/other"\nsignature_header = "X-Signed"\n'
        'secrets = ["the-secret-of-the-other"]\n',
        encoding="utf-8",
    )
    return path


async def _run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["send", "webhook.test", *arguments])


@pytest.mark.parametrize(
    ("options", "path", "header", "secret"),
    [
        ((), "/webhooks", "service-signature", SECRET),
        (("--source", "other"), "/other", "x-signed", "the-secret-of-the-other"),
        (("--secret", "another-secret"), "/webhooks", "service-signature", "another-secret"),
    ],
)
async def test_missing_options_come_from_the_config(
    relay: StubServer,
    tmp_path: Path,
    *,
    options: tuple[str, ...],
    path: str,
    header: str,
    secret: str,
) -> None:
    file = config(tmp_path, relay, 'max_body = "a fault that is no obstacle"')
    result = await _run("--config", str(file), *options)
    assert result.exit_code == 0, result.output
    (request,) = relay.requests
    assert request.target == path
    parsed = signature.parse(request.header[header].encode())
    assert parsed.candidates == (signature.sign(secret.encode(), parsed.timestamp, request.body),)


async def test_the_secret_is_that_of_the_source_at_the_url(
    relay: StubServer, tmp_path: Path
) -> None:
    file = config(tmp_path, relay)
    result = await _run("--config", str(file), "--url", relay.url("/other"))
    assert result.exit_code == 0
    assert "x-signed" in relay.requests[0].header


async def test_an_unreadable_config_is_an_error_that_names_the_alternative(
    relay: StubServer, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[server", encoding="utf-8")
    result = await _run("--config", str(file))
    assert result.exit_code == 78
    assert "is not TOML" in result.stderr
    assert "--url and --secret" in result.stderr
    around = ("--url", relay.url("/webhooks"), "--secret", SECRET)
    assert (await _run("--config", str(file), *around)).exit_code == 0
    unknown = await _run("--config", str(config(tmp_path, relay)), "--source", "mian")
    assert unknown.exit_code == 2
    assert "expected one of: main, other" in unknown.stderr


async def test_without_any_config_the_defaults_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relay: StubServer
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELAY_CONFIG", raising=False)
    monkeypatch.delenv("RELAY_SECRET", raising=False)
    result = await _run("--url", relay.url("/webhooks"))
    assert result.exit_code == 2
    assert "the environment variable RELAY_SECRET is not set" in result.stderr
