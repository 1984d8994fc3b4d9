"""The heads of CSV files, of the page's tables and of commands' tables are the same words."""

import csv
import io
import re
from pathlib import Path

import pytest

from tests.admin.page.document import Element
from tests.admin.page.test_audience import lead, view
from tests.admin.page.test_changes import record
from tests.admin.page.test_dead_letters import refuse_leads
from tests.admin.page.visiting import Visitor
from tests.admin.test_api import body, send
from tests.service import Relay
from tests.stub_server import StubServer

DOCS = Path(__file__).parents[3] / "docs"
COMMANDS = {
    "/events.csv": ("operating.md", "relay events list", {"age"}),
    "/dead-letters.csv": ("operating.md", "relay dead-letters list", set[str]()),
    "/changes.csv": ("operating.md", "relay audit list --limit 2", {"id", "asked"}),
    "/audience/videos.csv": ("audience.md", "relay audience", set[str]()),
}
"""The documented output of a command with the same rows, and the columns that only it has."""

TABLES = {
    "/events.csv": ("/events", "Events", set[str]()),
    "/dead-letters.csv": ("/dead-letters", "Dead letters", {"event"}),
    "/changes.csv": ("/changes", "Changes", set[str]()),
    "/audience/videos.csv": ("/audience?period=all", "Videos", set[str]()),
    "/audience/days.csv": ("/audience?period=all", "Day in numbers", set[str]()),
    "/audience/hours.csv": ("/audience?period=all", "Hour in numbers", set[str]()),
}
"""A table of the page with the same rows, and the columns that only it has."""


@pytest.fixture
def documented() -> dict[str, list[str]]:
    """The columns of each file, by the table in docs/console.md."""
    text = (DOCS / "console.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(/\S+\.csv)` \| (.+) \|$", text, re.MULTILINE)
    return {path: re.findall(r"`([^`]+)`", columns) for path, columns in rows}


async def heads(visitor: Visitor, path: str) -> list[str]:
    answer = await visitor.client.get(f"{path}?period=all" if "audience" in path else path)
    return next(csv.reader(io.StringIO(answer.text)))


def columns(page: Element, label: str) -> set[str]:
    """The visible heads of the table with this label."""
    (group,) = [each for each in page.all("div") if each.attributes.get("aria-label") == label]
    shown = [head for head in group.all("th") if not head.all("span", class_="hide")]
    return {head.text.lower().replace(" %", "%") for head in shown}


async def fill(relay: Relay) -> None:
    await send(relay, body("a"), lead("l1", "a"), view("s1", "a", "started"))
    await relay.until_counted("relay_deliveries_total", "dead", "leads", value=2)
    await record(relay, "pause_sink", target="leads")


async def test_a_file_has_the_columns_of_its_table_its_command_and_its_document(
    documented: dict[str, list[str]], destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    destination.reply = refuse_leads
    await fill(relay)
    assert {path: await heads(visitor, path) for path in documented} == documented
    for path, (place, label, more) in TABLES.items():
        assert columns(await visitor.see(place), label) - more <= {*documented[path]}, path


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_has_the_columns_of_the_file(documented: dict[str, list[str]], path: str) -> None:
    document, command, more = COMMANDS[path]
    text = (DOCS / document).read_text(encoding="utf-8")
    line = text.partition(f"$ {command}\n")[2].partition("\n")[0]
    assert {name.lower() for name in re.split(r"  +", line)} - more <= {*documented[path]}
