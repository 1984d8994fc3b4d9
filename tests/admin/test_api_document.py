"""The API conforms to its own document."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests import service
from tests.admin.test_api import body, send, working
from tests.operator import ADMIN, TOKEN, operating
from tests.stub_server import StubServer

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
DEADLINE_S = 240.0

# 422 is what a filter is answered that is well formed and cannot apply, or an order without one.
SETTINGS = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "404", "409", "422"]
"""


@pytest.mark.servers
async def test_every_response_conforms_to_the_document(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, _):
        await send(relay, body("a", email="ada@example.com"), body("b", "video.ready"))
        (tmp_path / "schemathesis.toml").write_text(SETTINGS, encoding="utf-8")
        command = [
            str(SCHEMATHESIS),
            *("run", f"{relay.service.admin.url}/api/v1/openapi.json"),
            *("--header", f"Authorization: Bearer {TOKEN}"),
            *("--exclude-operation-id", "watch"),  # it has no end
            *("--max-examples", "10", "--generation-deterministic", "--no-color"),
        ]
        running = await asyncio.create_subprocess_exec(
            *command,
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(DEADLINE_S):
            printed, _ = await running.communicate()
        assert running.returncode == 0, printed.decode()[-6000:]
        assert relay.lines("receiver.bug") == []


async def test_the_document_names_every_operation_once(tmp_path: Path) -> None:
    async with (
        service.serving(service.read(tmp_path, tables=ADMIN)) as relay,
        operating(relay) as operator,
    ):
        document = await operator.get("/openapi.json")
    operations = [each for path in document["paths"].values() for each in path.values()]
    names = [each["operationId"] for each in operations]
    assert len(names) == len(set(names))
    assert all(each["summary"] for each in operations)
    assert {"list_events", "begin_replay", "pause_sink", "watch"} <= set(names)
    assert document["security"] == [{"token": []}]
