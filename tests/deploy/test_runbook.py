"""The runbook: a section for each alert, with valid commands and queries."""

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from relay.cli import main
from tests.deploy import incidents
from tests.deploy.prometheus import Prometheus, rules

RUNBOOK = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
PARTS = ("What it means.", "What to look at.", "What to do.", "If nothing is done.")


def told() -> str:
    """Everything written for the person on call: the runbook and the alerts' descriptions."""
    alerts = (rule["annotations"]["description"] for rule in rules("alert"))
    return "\n".join([RUNBOOK, *(re.sub(r"\{\{[^}]*\}\}", "NAME", each) for each in alerts)])


def commands() -> list[str]:
    """Every relay command in these texts, also inside others such as `kubectl exec`."""
    written = re.findall(r"`([^`\n]+)`", told())
    for block in re.findall(r"```sh\n(.*?)```", RUNBOOK, re.DOTALL):
        written += block.splitlines()
    found = (re.search(r"(?:^|(?<=relay )|(?<=-- ))relay (?!relay)\S.*", line) for line in written)
    return sorted({match[0] for match in found if match})


def queries() -> Iterator[str]:
    for block in re.findall(r"```promql\n(.*?)```", RUNBOOK, re.DOTALL):
        yield from block.splitlines()


def parse(command: str) -> click.Command:
    """Parse a command line as the relay does, without running it."""
    _, *arguments = shlex.split(command)
    context = main.make_context("relay", arguments)
    with ExitStack() as opened:
        opened.enter_context(context)
        while isinstance(context.command, click.Group):
            rest = [*context._protected_args, *context.args]
            name, chosen, rest = context.command.resolve_command(context, rest)
            assert chosen is not None
            context = opened.enter_context(chosen.make_context(name, rest, parent=context))
    return context.command


def test_sections_and_alerts_are_the_same_in_the_same_order() -> None:
    assert list(SECTIONS) == list(dict.fromkeys(rule["alert"] for rule in rules("alert")))


@pytest.mark.parametrize("alert", SECTIONS)
def test_a_section_has_meaning_checks_actions_and_consequences(
    alert: str,
) -> None:
    assert tuple(re.findall(r"^\*\*(.+?)\*\*", SECTIONS[alert], re.MULTILINE)) == PARTS


@pytest.mark.parametrize("alert", SECTIONS)
def test_a_section_shows_a_command_or_a_query(alert: str) -> None:
    assert re.search(r"```(sh|promql)\n", SECTIONS[alert])


@pytest.mark.parametrize("command", commands())
def test_a_command_is_valid(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELAY_SECRET", "a-secret-of-sixteen-bytes")
    (tmp_path / "FILE").touch()
    assert not isinstance(parse(command), click.Group)


def test_commands_of_every_kind_are_found() -> None:
    found = set(commands())
    assert {"relay status", "relay sinks list", "relay rotate begin --source NAME"} <= found
    assert "relay status --config /etc/relay/config.toml" in found
    assert len(found) > 20


@pytest.mark.parametrize("wrong", ["relay sink list", "relay sinks stop NAME", "relay status -x"])
def test_an_unknown_command_is_detected(wrong: str) -> None:
    with pytest.raises(click.UsageError):
        parse(wrong)


@pytest.mark.parametrize("query", dict.fromkeys(queries()))
def test_a_query_has_a_result_on_the_scripted_day(scripted_day: Prometheus, query: str) -> None:
    assert scripted_day.ask(query, at_s=incidents.at("13:05"))


def test_every_named_log_event_is_in_the_code() -> None:
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (Path(__file__).parents[2] / "relay").rglob("*.py")
    )
    named = set(re.findall(r"`((?:config|event|receiver|request|store)\.[a-z_]+)`", RUNBOOK))
    assert named
    assert {name for name in named if f'"{name}"' not in code} == set()
