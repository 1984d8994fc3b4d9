"""The `relay` command: its subcommands, its start time, and its failures."""

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from relay import cli
from relay.cli import main
from relay.core import errors

DEADLINE_S = 20

failure: list[BaseException] = []


@click.command()
def fail() -> None:
    raise failure[-1]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(cli._COMMANDS, "fail", (__name__, ""))
    yield
    failure.clear()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def failed(error: BaseException) -> Result:
    failure.append(error)
    return run("fail")


def test_every_listed_command_can_be_imported() -> None:
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help


def test_help_names_every_command_and_its_purpose() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name, (_, text) in cli._COMMANDS.items():
        assert name in result.output
        assert text in result.output


def test_the_version_is_printed() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert re.fullmatch(r"relay \d+\.\d+\.\d+\n", result.output)


def test_an_unknown_command_is_a_usage_error() -> None:
    result = run("serv")
    assert result.exit_code == 2
    assert "No such command 'serv'" in result.stderr


@pytest.mark.servers
@pytest.mark.parametrize("arguments", [["--help"], ["send", "--help"]])
def test_small_commands_do_not_load_the_service(arguments: list[str]) -> None:
    script = (
        "import sys; from relay.cli import main; main(sys.argv[1:], standalone_mode=False); "
        "heavy = {'uvicorn', 'aiosqlite', 'jinja2', 'starlette'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("c.toml", (errors.Fault("a.b", "is bad"),)), 78),
        (errors.StoreTooNew("the schema is newer"), 78),
        (errors.StoreExposed("the file has 2 hard links"), 78),
        (errors.StoreLocked("another relay holds it"), 75),
        (errors.StoreFull("no room"), 75),
        (errors.StoreBroken("the disk failed"), 74),
        (errors.ListenFailed("127.0.0.1:80", "Permission denied"), 71),
        (errors.StoreError("anything else"), 1),
        (errors.InvalidRule("a rule"), 1),
    ],
)
@pytest.mark.usefixtures("failing")
def test_an_error_is_a_line_and_an_exit_code(error: errors.RelayError, code: int) -> None:
    result = failed(error)
    assert result.exit_code == code
    assert result.stderr == f"relay: {error}\n"
    assert result.stdout == ""


@pytest.mark.usefixtures("failing")
def test_every_fault_of_a_config_is_a_line() -> None:
    faults = (errors.Fault("a", "is bad"), errors.Fault("b", "is worse"))
    result = failed(errors.ConfigError("c.toml", faults))
    assert result.stderr == "relay: c.toml: a: is bad\nrelay: c.toml: b: is worse\n"


@pytest.mark.usefixtures("failing")
def test_an_error_inside_a_task_group_has_its_exit_code() -> None:
    inner = errors.ListenFailed("127.0.0.1:80", "Permission denied")
    result = failed(ExceptionGroup("tasks", [ExceptionGroup("more tasks", [inner])]))
    assert result.exit_code == 71
    assert result.stderr == "relay: cannot listen on 127.0.0.1:80: Permission denied\n"


@pytest.mark.parametrize(
    ("command", "code"), [("serve", 78), ("check-config", 1), ("route --event -", 78)]
)
def test_an_unreadable_config_is_not_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int
) -> None:
    config = tmp_path / "config.toml"
    config.touch()
    # root is never refused
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert run(*command.split(), "--config", str(config)).exit_code == code


@pytest.mark.usefixtures("failing")
def test_an_unusable_file_is_named() -> None:
    result = failed(PermissionError(13, "Permission denied", "events.json"))
    assert result.exit_code == 1
    assert result.stderr == "relay: events.json: Permission denied\n"


@pytest.mark.usefixtures("failing")
def test_a_bug_report_names_the_place_but_not_the_text() -> None:
    result = failed(ZeroDivisionError("whsec_inside_of_a_text"))
    assert result.exit_code == 70
    assert result.stderr.startswith("relay: internal error, please report it")
    assert "ZeroDivisionError" in result.stderr
    assert "test_main.py" in result.stderr
    assert "whsec" not in result.stderr


@pytest.mark.usefixtures("failing")
def test_a_broken_pipe_in_a_task_group_is_quiet() -> None:
    result = failed(ExceptionGroup("tasks", [BrokenPipeError(errno.EPIPE, "Broken pipe")]))
    assert result.exit_code == 1
    assert result.stderr == ""


@pytest.mark.servers
def test_ctrl_c_ends_with_130_and_no_traceback() -> None:
    command = [sys.executable, "-m", "relay", "send", "webhook.test", "--retry"]
    command += ["--secret", "a-secret-of-sixteen", "--url", "http://127.0.0.1:1/"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert b"connection refused" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert b"Traceback" not in rest


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    log_file = tmp_path / "stderr"
    with log_file.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "relay", "--help"], stdout=subprocess.PIPE, stderr=stderr
        )
        assert process.stdout is not None
        process.stdout.close()
        process.wait(timeout=DEADLINE_S)
    assert log_file.read_bytes() == b""


def test_the_help_of_serve_names_every_exit_code_that_it_can_have() -> None:
    help_text = run("serve", "--help").output
    of_serve = {code for kind, code in cli._EXIT_CODES.items() if kind is not errors.NoVerdict}
    assert {
        int(code) for code in re.findall(r"\b(\d+) (?:if|for|after)", help_text)
    } == of_serve | {0, 1, os.EX_SOFTWARE}


@pytest.mark.usefixtures("failing")
def test_control_characters_in_an_error_are_escaped() -> None:
    result = failed(errors.AdminApiError("no sink \x9b31m\u202e"))
    assert result.stderr == "relay: no sink \\x9b31m\\u202e\n"


@pytest.mark.usefixtures("failing")
def test_each_note_of_an_error_is_a_line() -> None:
    error = errors.AdminApiError("it did not work")
    error.add_note("do this")
    assert failed(error).stderr == "relay: it did not work\nrelay: do this\n"
