"""`kill -9` right after a sink was parked for its refusals costs no event."""

from pathlib import Path

import pytest

from relay.core.retry import FAILURE_THRESHOLD
from tests.cli.scene import signed
from tests.guarantees.process import Relay, http_client, until
from tests.stub_server import Reply, StubServer

pytestmark = pytest.mark.servers

SINK = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "{url}"\n'
LOST = FAILURE_THRESHOLD - 1
EVENTS = 12


async def send(relay: Relay, number: int) -> None:
    event = f'{{"id":"evt_{number}","event":"lead.captured","data":{{}}}}'.encode()
    async with http_client() as client:
        head = {"service-signature": signed(event)}
        assert (await client.post(relay.url, content=event, headers=head)).status_code == 202


async def test_a_kill_right_after_a_sink_was_parked_costs_no_event(tmp_path: Path) -> None:
    async with StubServer() as destination:
        destination.reply = lambda _: Reply(422)
        sinks = SINK.format(url=destination.url())
        async with Relay(tmp_path, sinks=sinks) as relay:

            async def is_parked() -> bool:
                return await relay.metric("relay_sink_state", sink="crm", state="parked") == 1

            await relay.start()
            for number in range(EVENTS):
                await send(relay, number)
            await until(is_parked, what="a parked sink")
            for _ in range(3):
                await relay.kill()
                tries = len(destination.requests)
                await relay.start()
                await until(
                    lambda before=tries: len(destination.requests) > before + 2,  # type: ignore[misc]
                    what="probes",
                )
                assert await is_parked()
                assert await relay.metric("relay_dead_letters", sink="crm") == LOST
            destination.reply = lambda _: Reply()
            await until(
                lambda: len({each.body for each in destination.requests}) == EVENTS,
                what="all events",
            )

            async def is_empty() -> bool:
                return await relay.metric("relay_pending_deliveries", sink="crm") == 0

            await until(is_empty, what="an empty backlog")
            assert await relay.metric("relay_dead_letters", sink="crm") == LOST
