"""`relay audience`: refused options, and hostile titles."""

import csv
import json
import time
from pathlib import Path

import orjson
import pytest

from relay.core import signature
from tests.cli.scene import Scene
from tests.guarantees.process import SECRET, Relay, http_client
from tests.operator import ADMIN

pytestmark = pytest.mark.servers

HOSTILE = (
    '=HYPERLINK("http://evil.example";"Report")',
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(1+1)",
    "\t=1+1",
    " =1+1",
    "\x1b[31mred\x1b[0m \u202egpj.exe",
    "two\r\nlines",
)


async def test_invalid_options_are_refused(scene: Scene) -> None:
    for command, complaint in (
        ("audience --by day --zone Europe", "Unknown time zone Europe"),
        ("audience --zone Europe/Berlin", "zone applies only to by=day and by=hour"),
        ("audience --json --csv", "exclude each other"),
        ("audience --source nobody", "Unknown source nobody. Known: main."),
        ("audience --since 2300-01-01", "No viewers and no leads yet."),
        ("audience --video vid_43", "names the video vid_43; did you mean vid_42?"),
        ("audience --video nope", "No counted event names the video nope."),
        ("audience --video product", "--video takes an ID: Product tour is vid_42."),
    ):
        assert complaint in (await scene.run(command))[-1]


async def test_a_title_is_neither_a_spreadsheet_formula_nor_a_terminal_command(
    tmp_path: Path,
) -> None:
    async with Relay(tmp_path, sinks="", rest=ADMIN) as relay:
        await relay.start()
        async with http_client() as client:
            for number, title in enumerate(HOSTILE):
                data = {"email": "ann@example.com", "video": {"id": f"v{number}", "title": title}}
                lead = {"id": f"e{number}", "event": "lead.captured", "data": data}
                body = orjson.dumps(lead)
                header = signature.header(SECRET.encode(), now_s=int(time.time()), body=body)
                response = await client.post(
                    relay.url, content=body, headers={"service-signature": header}
                )
                assert response.is_success
        scene = Scene(tmp_path)
        table, printed = await scene.run("audience"), await scene.run("audience --csv")
        report = json.loads("".join(await scene.run("audience --json")))
        by_hour = await scene.run("audience --by hour --zone Asia/Kolkata")
        hours = list(csv.DictReader(await scene.run("audience --by hour --csv")))
    rows = list(csv.DictReader(printed))
    assert {row["video"] for row in rows} == {f"v{number}" for number in range(len(HOSTILE))}
    assert not [row for row in rows if row["title"].strip()[0] in "=+-@\t\r"]
    assert {(row["leads"], row["forms"]) for row in rows} == {("1", "1")}
    assert all(line.isprintable() for line in (*table, *printed))
    assert {group["title"] for group in report["groups"]} == set(HOSTILE)
    assert report["total"][-1]["people"] == 1
    assert by_hour[0].startswith("HOUR (Asia/Kolkata)  STARTED")
    assert [line.split()[0] for line in by_hour[1:25]] == [f"{hour:02}" for hour in range(24)]
    assert [row["hour"] for row in hours] == [str(hour) for hour in range(24)]
    assert sum(int(row["forms"]) for row in hours) == len(HOSTILE)
