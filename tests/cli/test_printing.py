"""Output of commands: no control characters, no broken ids, times for programs."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from relay.cli import main
from relay.cli.output import Output, flow, indented, table
from tests.guarantees.process import Relay, until
from tests.guarantees.traffic import lead, post
from tests.operator import ADMIN
from tests.stub_server import Reply, StubServer

LONG_ID = "evt_0123456789abcdef0123456789abcdef"
HOSTILE = "a\x1b[2J\x9b31m\u202egnp.exe\u2066x\u200b\u2028"
"""Escape sequences of both forms, bidirectional marks and invisible characters."""

_SINK = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "{url}"\n'


async def run(*arguments: str, **environ: str) -> Result:
    runner = CliRunner(env=environ)
    return await asyncio.to_thread(runner.invoke, main, arguments)


def is_visible(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.servers
async def test_control_characters_in_a_body_are_escaped(tmp_path: Path) -> None:
    body = orjson.dumps(
        {"id": "a", "event": "lead.captured", "data": {"email": "a@b.example", "name": HOSTILE}}
    )
    (tmp_path / "event").write_bytes(body)
    async with StubServer() as destination:
        destination.reply = lambda _: Reply(422, HOSTILE.encode())
        sinks = _SINK.format(url=destination.url())
        async with Relay(tmp_path, sinks=sinks, rest=ADMIN) as relay:
            await relay.start()
            await post(relay.url, body)
            await until(lambda: len(destination.requests) == 1, what="a delivery")
            config = ("--config", str(relay.config))
            event = ("--event", str(tmp_path / "event"))
            for command in (
                ("export", "a@b.example", *config),
                ("export", "a@b.example", "--json", *config),
                ("events", "show", "a", *config),
                ("events", "show", "a", "--json", *config),
                ("events", "list", *config),
                ("dead-letters", "list", *config),
                ("render", "--sink", "crm", *event, *config),
                ("render", "--sink", "crm", *event, "--json", *config),
                ("route", *event, *config),
            ):
                result = await run(*command)
                assert result.exit_code == 0, result.output
                assert is_visible(result.output), command


def test_escaped_json_parses_to_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    for document in ({"name": HOSTILE}, {"name": "\U000e0001 é \U0001f600"}):
        Output(document, ()).print(as_json=True)
        line, lines = capsys.readouterr().out, "\n".join(indented(document))
        assert is_visible(lines + line)
        assert json.loads(lines) == json.loads(line) == document
    assert "é" in lines


@pytest.mark.servers
async def test_json_has_each_moment_in_utc_beside_its_milliseconds(tmp_path: Path) -> None:
    async with StubServer() as destination:
        sinks = _SINK.format(url=destination.url())
        async with Relay(tmp_path, sinks=sinks, rest=ADMIN) as relay:
            await relay.start()
            await post(relay.url, lead("a"))
            result = await run("events", "list", "--json", "--config", str(relay.config))
            status = await run("status", "--json", "--config", str(relay.config))
    (event,) = json.loads(result.stdout)["events"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["received_at"])
    assert event["received_ms"] > 0
    assert json.loads(status.stdout)["started_at"].endswith("Z")


def test_a_duration_is_not_a_moment(capsys: pytest.CaptureFixture[str]) -> None:
    times = {"duration_ms": 12, "at_ms": 1_795_339_800_123, "due_ms": None, "end_ms": 10**18}
    Output(times, ()).print(as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "duration_ms": 12,
        "at_ms": 1_795_339_800_123,
        "at": "2026-11-22T09:30:00.123Z",
        "due_ms": None,
        "end_ms": 10**18,
    }


def test_a_narrow_terminal_cuts_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    row = {"TIME": "2026-11-22T09:30:00Z", "ID": LONG_ID, "SINK": "crm"}
    lines = [
        *table([row, row], empty=""),
        *flow(["2026-11-22T09:30:00Z", "delivered", "sink=crm", f"id={LONG_ID}"]),
    ]
    assert all(len(line) <= 60 for line in lines)
    assert sum(LONG_ID in line for line in lines) == 3


def test_rows_that_fit_and_output_to_a_pipe_are_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"TIME": "2026-11-22T09:30:00Z", "ID": LONG_ID, "SINK": "crm"}
    monkeypatch.setenv("COLUMNS", "80")
    assert len(list(table([row], empty=""))) == 2
    monkeypatch.delenv("COLUMNS")
    assert len(list(table([row | {"SINK": "x" * 500}], empty=""))) == 2


@pytest.mark.servers
async def test_export_prints_one_line_with_json(tmp_path: Path) -> None:
    async with Relay(tmp_path, sinks="", rest=ADMIN) as relay:
        await relay.start()
        await post(relay.url, lead("a"))
        config = ("--config", str(relay.config))
        email = json.loads(lead("a"))["data"]["email"]
        # The views in an export are those that have been counted.
        assert (await run("audience", *config)).exit_code == 0
        line = await run("export", email, "--json", *config)
        lines = await run("export", email, *config)
    assert len(line.stdout.splitlines()) == 1
    assert json.loads(line.stdout) == json.loads(lines.stdout)
    assert json.loads(line.stdout)["events"]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "iso8859-15"])
def test_what_the_encoding_of_the_output_cannot_hold_is_escaped_as_in_json(encoding: str) -> None:
    document = {"name": "Zo\u00eb \u2192 \U0001f600", "half": "\ud83d"}
    program = (
        "import click; from relay.cli import escape_streams; "
        "from relay.cli.output import indented; "
        f"escape_streams(); [click.echo(line) for line in indented({document!a})]; "
        f"click.echo({document['name']!a}, err=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout.decode(encoding)) == document
    assert done.stderr.decode(encoding).rstrip().endswith(r"\u2192 \ud83d\ude00")


def test_every_command_escapes_what_its_output_cannot_hold(tmp_path: Path) -> None:
    missing = tmp_path / "caf\u00e9 \u2192.toml"
    done = subprocess.run(
        [sys.executable, "-m", "relay", "status", "--config", missing],
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "1"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == os.EX_CONFIG, done.stderr
    assert b"caf\xe9 \\u2192.toml" in done.stderr
