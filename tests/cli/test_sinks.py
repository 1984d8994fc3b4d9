"""`relay sinks test` and `check-config --connect`: what a far end's answer means for an event."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from relay.cli import main
from tests.guarantees.process import Relay
from tests.operator import ADMIN
from tests.sinks.far_end import FarEnd, Reply

_SINK = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "{url}"\n'


@contextlib.asynccontextmanager
async def working(folder: Path, far_end: FarEnd) -> AsyncIterator[Relay]:
    async with Relay(folder, sinks=_SINK.format(url=far_end.url()), rest=ADMIN) as relay:
        await relay.start()
        yield relay


async def run(command: str, relay: Relay) -> Result:
    arguments = (*command.split(), "--config", str(relay.config))
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


async def test_an_answer_that_would_fail_an_event_is_no_success(tmp_path: Path) -> None:
    consequences = {
        302: "an event would park the sink until someone acts",
        401: "an event would park the sink until someone acts",
        404: "an event would park the sink until someone acts",
        429: "an event would be tried again",
        500: "an event would be tried again",
    }
    async with FarEnd() as far_end, working(tmp_path, far_end) as relay:
        for status, consequence in consequences.items():
            far_end.reply = lambda _, status=status: Reply(status)  # type: ignore[misc]
            tested = await run("sinks test crm", relay)
            checked = await run("check-config --connect", relay)
            assert (tested.exit_code, checked.exit_code) == (1, 1)
            for printed in (tested.stdout, checked.stdout):
                assert f"{status} to OPTIONS: " in printed
                assert f"; {consequence}\n" in printed


@pytest.mark.parametrize("status", [200, 405])
async def test_an_answer_that_says_nothing_against_events_is_shown(
    tmp_path: Path, status: int
) -> None:
    async with FarEnd() as far_end, working(tmp_path, far_end) as relay:
        far_end.reply = lambda _: Reply(status)
        tested = await run("sinks test crm", relay)
        checked = await run("check-config --connect", relay)
        found = json.loads((await run("sinks test crm --json", relay)).stdout)["found"]
    assert (tested.exit_code, checked.exit_code) == (0, 0)
    assert tested.stdout == f"crm: reached ({found})\n"
    assert f"sink crm (http): reached ({found})\n" in checked.stdout
    assert found.startswith(f"{status} to OPTIONS")
