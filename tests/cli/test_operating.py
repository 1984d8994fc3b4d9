"""The commands print the output that the documents show."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.scene import Scene, plain

DOCUMENTS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def documented(name: str) -> Iterator[tuple[str, list[str]]]:
    """Return each command of the document with its documented output."""
    for block in _BLOCK.findall((DOCUMENTS / name).read_text(encoding="utf-8")):
        for part in re.split(r"^\$ relay ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip("\n").split("\n")
            yield command, lines


def undated(line: str) -> str:
    return re.sub(r"^\d{4}-\d\d-\d\d\b", "<day>", plain(line))


@pytest.mark.servers
@pytest.mark.parametrize("name", ["operating.md", "rotation.md", "audience.md"])
async def test_every_command_prints_the_documented_output(scene: Scene, name: str) -> None:
    for command, lines in documented(name):
        printed = await scene.run(command)
        assert [undated(line) for line in printed] == [undated(line) for line in lines], command


def test_the_document_shows_every_command_of_a_running_relay() -> None:
    groups = {" ".join(command.split()[:2]) for command, _ in documented("operating.md")}
    expected = {"events list", "events show", "dead-letters list", "dead-letters replay"}
    expected |= {"dead-letters discard", "sinks list", "sinks pause", "sinks resume", "sinks test"}
    expected |= {"replays list", "replays cancel", "status", "store check"}
    expected |= {"store backup", "absences list", "unreadable list", "audit list"}
    assert expected <= groups
    assert any(command.startswith("replay ") for command, _ in documented("operating.md"))
