"""Commands that cannot be undone ask on a terminal, and nowhere else."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from relay.cli import main
from tests.ports import free_port

CONFIG = (
    '[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = ["a-secret-of-the-tests"]\n'
    '[source.api]\nbase_url = "http://127.0.0.1:{port}"\nendpoint = "wh_1"\n'
    'key = "key_of_the_tests_0123456789"\n'
    '[server]\nadmin_listen = "127.0.0.1:{port}"\n[admin]\ntoken = "a-token-of-the-tests"\n'
)
"""Of a relay and an API that are away: a command that connects has passed the question."""

COMMANDS = {
    "erase ada@example.com": "Remove all stored data of ada@example.com?",
    "dead-letters discard --all": "Discard all dead letters?",
    "unreadable discard --all": "Delete all unreadable requests?",
    "unreadable discard --source main": "Delete the unreadable requests that match?",
    "unreadable discard 1234abcd": "Delete the unreadable request 1234abcd?",
    "endpoint remove": "Remove wh_1 of source main? Nothing can arrive then.",
}
HARMLESS = [
    "erase --dry-run ada@example.com",
    "dead-letters discard --all --dry-run",
    "dead-letters discard --sink crm",
    "unreadable discard --all --dry-run",
    "unreadable discard --source main --dry-run",
    "unreadable retry --all",
]
WENT_ON = "connect"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(CONFIG.format(port=free_port()), encoding="utf-8")
    return file


def run(command: str, config: Path, answer: str = "") -> Result:
    words = [*command.split(), "--config", str(config)]
    return CliRunner().invoke(main, words, input=answer, prog_name="relay")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.cli.parameters._is_at_terminal", lambda: True)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("command", "question"), COMMANDS.items())
def test_a_command_that_cannot_be_undone_asks_on_a_terminal(
    config: Path, command: str, question: str
) -> None:
    for answer in ("n\n", "\n", ""):
        refused = run(command, config, answer)
        assert refused.exit_code == 1
        assert question in refused.stderr
        assert question not in refused.stdout
        assert WENT_ON not in refused.output
    assert WENT_ON in run(command, config, "y\n").output


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("command", [*HARMLESS, *(f"{command} --yes" for command in COMMANDS)])
def test_nothing_is_asked_with_yes_or_where_nothing_is_lost(config: Path, command: str) -> None:
    done = run(command, config, "n\n")
    assert (WENT_ON in done.output, "[y/N]" in done.output) == (True, False)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_terminal_nothing_is_asked(config: Path, command: str) -> None:
    done = run(command, config, "n\n")
    assert (WENT_ON in done.output, "[y/N]" in done.output) == (True, False)
