"""The relay that a command talks to, and responses of other servers."""

import asyncio
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from relay import __version__
from relay.cli import main
from tests.brokers.authority import Authority
from tests.guarantees.process import Relay
from tests.operator import ADMIN, TOKEN
from tests.ports import free_port
from tests.stub_server import Reply, Script, StubServer

LOCAL = {
    *("serve", "check-config", "endpoint", "route", "render", "send", "probe"),
    *("store copy", "store restore"),
}
"""Commands that need more of the config than the admin address, or no token, or no relay."""

OTHER = {"relay-version": "9.9.9"}


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


def leaves(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def test_every_command_of_a_running_relay_has_url_and_token_options() -> None:
    for name, command in leaves(main):
        options = {option for each in command.params for option in each.opts}
        if "--config" in options and not {name, name.split()[0]} & LOCAL:
            assert {"--url", "--token"} <= options, name


@pytest.mark.servers
async def test_a_command_with_url_and_token_ignores_broken_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Relay(tmp_path, sinks='[[sink]]\nname = "out"\ntype = "stdout"\n', rest=ADMIN) as it:
        await it.start()
        it.config.write_text("[server\n", encoding="utf-8")
        monkeypatch.setenv("RELAY_CONFIG", str(it.config))
        monkeypatch.setenv("ITS_TOKEN", TOKEN)
        way = ("--url", it.admin_url, "--token", "env:ITS_TOKEN")
        for command in ("status", "sinks list", "sinks pause out", "events list", "store check"):
            assert (await run(*command.split(), *way)).exit_code == 0, command
            without = await run(*command.split())
            assert without.exit_code == 78
            assert "is not TOML" in without.stderr
            if command != "store check":
                assert "--url" in without.stderr
        refused = await run("reload", *way, "--json")
        assert json.loads(refused.stdout)["ok"] is False


@pytest.mark.servers
async def test_faults_of_other_tables_do_not_stop_a_command(tmp_path: Path) -> None:
    async with Relay(tmp_path, sinks="", rest=ADMIN) as relay:
        await relay.start()
        text = relay.config.read_text(encoding="utf-8")
        broken = text.replace("[server]", '[server]\nmax_body = "much"') + "[odd]\n"
        relay.config.write_text(broken, encoding="utf-8")
        assert (await run("sinks", "list", "--config", str(relay.config))).exit_code == 0


@pytest.mark.servers
async def test_a_wrong_token_option_and_a_wrong_token_in_the_config_differ(tmp_path: Path) -> None:
    async with Relay(tmp_path, sinks="", rest=ADMIN) as relay:
        await relay.start()
        result = await run("sinks", "list", "--url", relay.admin_url, "--token", "wrong")
    assert result.exit_code == 1
    assert result.stderr == (
        "relay: the relay refused the token of --token; "
        "give the one of its config's [admin] table\n"
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--url", "localhost"),
        ("--url", "ftp://h"),
        ("--url", "http://user:word@h"),
        ("--token", "env:NOT_SET"),
    ],
)
async def test_an_invalid_url_or_token_is_a_usage_error(
    options: tuple[str, str],
) -> None:
    result = await run("status", *options)
    assert result.exit_code == 2
    assert f"Invalid value for '{options[0]}'" in result.stderr


_JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "script",
    [
        lambda _: Reply(200, b"<html></html>", {"content-type": "text/html"}),
        lambda _: Reply(200, b'{"version": "1"}', _JSON),
        lambda _: Reply(302, b"", {"location": "/login"}),
        lambda _: Reply(401, b"", {"www-authenticate": "Basic"}),
        lambda _: Reply(404, b"gone", {}),
        lambda _: Reply(502, b"<html></html>", {"content-type": "text/html"}),
        lambda _: b"220 mail.example ESMTP\r\n",
        lambda _: b"",
    ],
    ids=["html", "json", "redirect", "login", "absent", "proxy", "no_http", "closed"],
)
async def test_another_server_is_reported_as_no_relay(script: Script) -> None:
    async with StubServer() as destination:
        destination.reply = script
        for command in ("status", "sinks list", "events tail", "store backup copy.db", "reload"):
            result = await run(*command.split(), "--url", destination.url(), "--token", "a-token")
            assert result.exit_code == (2 if command == "status" else 1)
            assert "admin listener" in result.stderr, command
            assert len(result.stderr.splitlines()) == 1
            assert destination.url().removeprefix("http://").rstrip("/") in result.stderr


async def test_a_tls_port_is_reported_as_no_admin_listener(tmp_path: Path) -> None:
    issued = Authority(tmp_path / "ca").issue("relay")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued)
    async with StubServer(tls=context) as destination:
        url = destination.url().replace("https:", "http:")
        result = await run("sinks", "list", "--url", url, "--token", "a-token")
    assert result.exit_code == 1
    assert "a TLS port" in result.stderr


@pytest.mark.parametrize("command", ["replays cancel x", "events list --before x"])
async def test_a_number_that_is_none_is_called_so(command: str) -> None:
    result = await run(*command.split())
    assert result.exit_code == 2
    assert "'x' is not a valid integer." in result.stderr


async def test_a_refused_connection_names_the_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    result = await run("status", "--url", f"http://{address}", "--token", "a-token")
    assert result.exit_code == 2
    assert f"cannot connect to the relay at {address}: Connection refused; " in result.stderr


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            Reply(404, b'{"title": "Not Found", "status": 404}', OTHER),
            "the relay does not support GET /api/v1/sinks: ",
        ),
        (Reply(200, b"{}", OTHER), "the response has no `sinks`: "),
        (Reply(200, b'{"sinks": [{"name": "crm"}]}', OTHER), "the response has no `condition`: "),
        (Reply(200, b"[]", OTHER), "cannot read the response: "),
        (Reply(200, b"{", OTHER), "cannot read the response: "),
        (Reply(400, b'{"title": "Bad", "detail": "odd is not known here"}', OTHER), "odd is not"),
    ],
)
async def test_a_relay_of_another_version_is_reported_with_both_versions(
    reply: Reply, message: str, destination: StubServer
) -> None:
    destination.reply = lambda _: reply
    result = await run("sinks", "list", "--url", destination.url(), "--token", "a-token")
    assert result.exit_code == 1
    assert message in result.stderr
    assert f"this command has version {__version__}, the relay at " in result.stderr
    assert "has 9.9.9" in result.stderr


@pytest.mark.servers
async def test_a_probe_needs_no_token_and_ignores_sinks(tmp_path: Path) -> None:
    sink = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "http://127.0.0.1:1/"\n'
    async with Relay(tmp_path, sinks=sink) as relay:
        await relay.start()
        for options in (("--config", str(relay.config)), ("--url", relay.admin_url)):
            result = await run("probe", *options)
            assert (result.exit_code, result.stdout) == (0, "ok\n")
        await relay.stop()
        result = await run("probe", "--config", str(relay.config))
    assert result.exit_code == 1
    assert "cannot connect to the relay" in result.stderr


@pytest.mark.parametrize(
    "token", ["s\u00e9same", "two words", "line\nbreak", "tab\there", "\U0001f511"]
)
def test_a_token_that_no_header_carries_is_a_usage_error(token: str) -> None:
    done = CliRunner().invoke(
        main, ["sinks", "list", "--url", "http://127.0.0.1:1", "--token", token]
    )
    assert done.exit_code == 2
    assert "Invalid value for '--token': the token has a character that no header" in done.output
    assert token not in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("events", "list", "--words", "caf\udce9"),
        ("sinks", "pause", "caf\udce9"),
        ("unreadable", "discard", "--reason", "caf\udce9"),
    ],
)
def test_an_argument_that_is_no_text_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*arguments, "--url", "http://127.0.0.1:1", "--token", "t" * 9])
    assert done.exit_code == 2
    assert "an argument is not UTF-8 text" in done.output
