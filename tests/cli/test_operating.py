"""The commands print the output in docs/operating.md."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.scene import plain, staged

DOCUMENT = Path(__file__).parents[2] / "docs" / "operating.md"
_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def documented() -> Iterator[tuple[str, list[str]]]:
    """Return each command of the document with its documented output."""
    for block in _BLOCK.findall(DOCUMENT.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ relay ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip("\n").split("\n")
            yield command, lines


@pytest.mark.servers
async def test_every_command_prints_the_documented_output(tmp_path: Path) -> None:
    async with staged(tmp_path) as scene:
        for command, lines in documented():
            printed = await scene.run(command)
            assert [plain(line) for line in printed] == [plain(line) for line in lines], command


def test_the_document_shows_every_command_of_a_running_relay() -> None:
    groups = {" ".join(command.split()[:2]) for command, _ in documented()}
    expected = {"events list", "events show", "dead-letters list", "dead-letters replay"}
    expected |= {"dead-letters discard", "sinks list", "sinks pause", "sinks resume", "sinks test"}
    expected |= {"replays list", "replays cancel", "status", "store check"}
    expected |= {"store backup", "absences list", "unreadable list", "audit list"}
    assert expected <= groups
    assert any(command.startswith("replay ") for command, _ in documented())
