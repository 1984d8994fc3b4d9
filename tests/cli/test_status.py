"""`relay status`: output and exit codes."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from relay.cli import main
from tests.cli.scene import signed
from tests.guarantees.process import Relay, http_client
from tests.operator import ADMIN
from tests.ports import free_port
from tests.stub_server import Reply, StubServer

SINK = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "{url}"\n'
EVENT = b'{"id":"evt_1","event":"lead.captured","data":{}}'


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["status", *arguments])


async def send(relay: Relay) -> None:
    async with http_client() as client:
        head = {"service-signature": signed(EVENT)}
        response = await client.post(relay.url, content=EVENT, headers=head)
    assert response.status_code == 202


@pytest.mark.servers
async def test_a_relay_without_problems_exits_with_0(tmp_path: Path) -> None:
    async with Relay(tmp_path, sinks="", rest=ADMIN) as relay:
        await relay.start()
        result = await run("--config", str(relay.config))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("well: no problem needs action\n\nThe config has no sink.\n")


@pytest.mark.servers
async def test_a_failing_sink_exits_with_1_and_is_shown_with_cause_and_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destination: StubServer
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    destination.reply = lambda _: Reply(401)
    sinks = SINK.format(url=destination.url())
    async with Relay(tmp_path, sinks=sinks, rest=ADMIN) as relay:
        await relay.start()
        await send(relay)
        async with asyncio.timeout(30):
            while (result := await run("--config", str(relay.config))).exit_code == 0:
                pass
        as_json = await run("--config", str(relay.config), "--json")
    assert result.exit_code == as_json.exit_code == 1
    first, problem, empty, head, sink, *_ = result.stdout.splitlines()
    assert (first, empty) == ("not well: 1 problem needs action", "")
    what, since, why, after = problem.split("  ")
    assert (what, after) == ("ticket: sink crm is parked", "next: relay sinks test crm")
    assert since.startswith("since 20")
    assert why.startswith("401")
    assert head.split()[:3] == ["SINK", "STATE", "SINCE"]
    assert sink.split()[:2] == ["crm", "parked"]
    (listed,) = json.loads(as_json.stdout)["problems"]
    assert (listed["what"], listed["severity"]) == ("sink crm is parked", "ticket")
    assert listed["since_at"].endswith("Z")


@pytest.mark.servers
async def test_no_part_of_a_problem_is_cut_at_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a-sink-with-a-rather-long-name-of-its-own"
    async with Relay(tmp_path, sinks=SINK.format(url="http://127.0.0.1:9/"), rest=ADMIN) as relay:
        text = relay.config.read_text(encoding="utf-8").replace('"crm"', f'"{name}"')
        relay.config.write_text(text, encoding="utf-8")
        await relay.start()
        config = ("--config", str(relay.config))
        paused = await asyncio.to_thread(
            CliRunner().invoke, main, ["sinks", "pause", name, *config]
        )
        assert paused.exit_code == 0
        monkeypatch.setenv("COLUMNS", "80")
        result = await run(*config)
    assert result.exit_code == 0
    assert f"  next: relay sinks resume {name}" in result.stdout.splitlines()
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.servers
async def test_a_hanging_relay_exits_with_2_within_the_timeout(tmp_path: Path) -> None:
    async with Relay(tmp_path, sinks="", rest=ADMIN) as relay:
        await relay.start()
        relay.signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                result = await run("--config", str(relay.config))
        finally:
            relay.signal(signal.SIGCONT)
    assert result.exit_code == 2
    assert result.stderr == (
        f"relay: the relay at 127.0.0.1:{relay.admin_port} did not respond in time; check its log\n"
    )


@pytest.mark.servers
async def test_an_unreachable_relay_or_a_refused_token_exits_with_2(tmp_path: Path) -> None:
    async with Relay(tmp_path, sinks="", rest=ADMIN) as relay:
        await relay.start()
        wrong = await run("--url", relay.admin_url, "--token", "another-token")
    assert wrong.exit_code == 2
    assert "refused the token" in wrong.stderr
    absent = await run("--url", f"http://127.0.0.1:{free_port()}", "--token", "any")
    assert absent.exit_code == 2
    assert "cannot connect to the relay" in absent.stderr


async def test_a_missing_config_exits_with_78(tmp_path: Path) -> None:
    missing = await run("--config", str(tmp_path / "none.toml"))
    assert missing.exit_code == 78
    assert "78 if the config" in " ".join((await run("--help")).stdout.split())


async def test_a_response_without_a_verdict_exits_with_2(destination: StubServer) -> None:
    destination.reply = lambda _: Reply(200, b'{"version": "0.0.1"}', {"relay-version": "0.0.1"})
    result = await run("--url", destination.url(), "--token", "any")
    assert result.exit_code == 2
    assert "has 0.0.1" in result.stderr
