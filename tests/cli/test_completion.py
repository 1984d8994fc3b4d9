"""Shell completion, and suggestions for mistyped names."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from relay.cli import main

CONFIG = """
[[source]]
name = "main"
[[sink]]
name = "crm"
[[sink]]
name = "chat"
[[sink]]
name = 1
"""


def completed(words: str, folder: Path) -> list[str]:
    """Return the completions of the last word in bash."""
    environ = {
        "_RELAY_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "RELAY_CONFIG": str(folder / "config.toml"),
    }
    ran = CliRunner(env=environ).invoke(main, prog_name="relay")
    assert ran.exit_code == 0, ran.output
    return [line.partition(",")[2] for line in ran.stdout.split()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


@pytest.mark.servers
def test_commands_are_completed(folder: Path) -> None:
    assert completed("relay re", folder) == [
        "render",
        "replay",
        "replays",
        "reconcile",
        "reconciliations",
        "reload",
    ]
    assert "pause" in completed("relay sinks ", folder)


@pytest.mark.servers
def test_names_are_completed_from_the_config(folder: Path) -> None:
    assert completed("relay sinks pause c", folder) == ["crm", "chat"]
    assert completed("relay events tail --sink cr", folder) == ["crm"]
    assert completed("relay rotate begin --source ", folder) == ["main"]


@pytest.mark.servers
def test_an_unreadable_config_gives_no_completions(folder: Path) -> None:
    for broken in ("[[sink", "sink = 1", "[sink]\nname = 1", "[[sink]]\n"):
        (folder / "config.toml").write_text(broken, encoding="utf-8")
        assert completed("relay sinks pause ", folder) == []
    (folder / "config.toml").unlink()
    assert completed("relay sinks pause ", folder) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_calls_this_command(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"_RELAY_COMPLETE={shell}_complete" in result.output


def test_completing_a_command_imports_no_command() -> None:
    script = (
        "import click, sys; from relay.cli import main; "
        "main.shell_complete(click.Context(main), 's'); "
        "loaded = [each for each in sys.modules if each.startswith('relay.service')]; "
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("sink", "sinks"), ("event", "events"), ("dead-letter", "dead-letters"), ("serv", "serve")],
)
def test_a_mistyped_command_gets_a_suggestion(typed: str, meant: str) -> None:
    result = CliRunner().invoke(main, [typed])
    assert result.exit_code == 2
    assert f"No such command '{typed}'." in result.stderr
    assert re.search(f"Did you mean .*'{meant}'", result.stderr)


def test_a_mistyped_subcommand_gets_a_suggestion() -> None:
    result = CliRunner().invoke(main, ["sinks", "paus"])
    assert "Did you mean 'pause'?" in result.stderr
