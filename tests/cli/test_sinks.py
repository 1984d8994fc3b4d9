"""`relay sinks`: results of a test, and operations on a sink."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from relay.cli import main
from tests.cli.scene import signed
from tests.guarantees.process import Relay, http_client, until
from tests.operator import ADMIN
from tests.stub_server import Reply, StubServer

pytestmark = pytest.mark.servers

_SINK = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "{url}"\nretry = {{ first = "1h" }}\n'


@contextlib.asynccontextmanager
async def working(folder: Path, destination: StubServer) -> AsyncIterator[Relay]:
    async with Relay(folder, sinks=_SINK.format(url=destination.url()), rest=ADMIN) as relay:
        await relay.start()
        yield relay


async def run(command: str, relay: Relay) -> Result:
    arguments = (*command.split(), "--config", str(relay.config))
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


async def test_a_response_that_would_fail_an_event_exits_with_1(tmp_path: Path) -> None:
    consequences = {
        302: "an event would park the sink until an operator acts",
        401: "an event would park the sink until an operator acts",
        404: "an event would park the sink until an operator acts",
        429: "an event would be retried",
        500: "an event would be retried",
    }
    async with StubServer() as destination, working(tmp_path, destination) as relay:
        for status, consequence in consequences.items():
            destination.reply = lambda _, status=status: Reply(status)  # type: ignore[misc]
            tested = await run("sinks test crm", relay)
            checked = await run("check-config --connect", relay)
            assert (tested.exit_code, checked.exit_code) == (1, 1)
            for printed in (tested.stdout, checked.stdout):
                assert f"{status} to OPTIONS: " in printed
                assert f"; {consequence}\n" in printed


@pytest.mark.parametrize("status", [200, 405])
async def test_a_harmless_response_is_shown_and_exits_with_0(tmp_path: Path, status: int) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as relay:
        destination.reply = lambda _: Reply(status)
        tested = await run("sinks test crm", relay)
        checked = await run("check-config --connect", relay)
        detail = json.loads((await run("sinks test crm --json", relay)).stdout)["found"]
    assert (tested.exit_code, checked.exit_code) == (0, 0)
    assert tested.stdout == f"crm: reached ({detail})\n"
    assert f"sink crm (http): reached ({detail})\n" in checked.stdout
    assert detail.startswith(f"{status} to OPTIONS")


async def test_a_sample_arrives_marked_and_is_not_stored(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as relay:
        sent = await run("sinks test crm --send", relay)
        (lead,) = destination.requests
        document = json.loads(lead.body)
        assert document["event"] == "lead.captured"
        assert document["id"].startswith("evt_test_")
        assert document["data"]["name"].startswith("[TEST] ")
        assert document["data"]["video"]["title"].startswith("[TEST] ")
        assert (sent.exit_code, sent.stdout) == (
            *(0, f"crm: taken (200 to a sample of lead.captured, {document['id']})\n"),
        )
        await run("sinks pause crm", relay)
        sent = await run("sinks test crm --send --event video.ready --json", relay)
        assert json.loads(destination.requests[1].body)["event"] == "video.ready"
        assert json.loads(sent.stdout)["result"] == "delivered"
        assert "No event matches." in (await run("events list", relay)).stdout
        listed = await run("audit list --json", relay)
        assert [change["operation"] for change in json.loads(listed.stdout)["changes"]] == [
            *("send_sample", "pause_sink", "send_sample")
        ]


async def test_a_sample_waits_for_no_event(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as relay:
        text = relay.config.read_text().replace('name = "crm"', 'name = "crm"\nconcurrency = 1')
        relay.config.write_text(text)
        assert (await run("reload", relay)).exit_code == 0
        destination.reply = lambda request: Reply() if b"evt_test_" in request.body else None
        await send(relay, "evt_1")
        await until(lambda: len(destination.requests) == 1, what="the event")
        sent = await run("sinks test crm --send", relay)
        assert sent.stdout.startswith("crm: taken (200 to a sample of lead.captured")


async def test_a_sample_that_is_not_taken_exits_with_1(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as relay:
        destination.reply = lambda _: Reply(422)
        sent = await run("sinks test crm --send", relay)
        assert sent.exit_code == 1
        assert sent.stdout.startswith("crm: 422: the destination refuses this event; an event ")
        assert len(destination.requests) == 1
        unknown = await run("sinks test crm --send --event lead.capture", relay)
        assert "did you mean lead.captured?" in unknown.stderr
        alone = await run("sinks test crm --event lead.captured", relay)
        assert (alone.exit_code, len(destination.requests)) == (2, 1)


async def test_a_sink_that_takes_no_sample_asks_for_a_kind(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as relay:
        text = relay.config.read_text()
        narrow = 'name = "crm"\nwhen = "data.fields.vip == \'yes\'"'
        relay.config.write_text(text.replace('name = "crm"', narrow))
        assert (await run("reload", relay)).exit_code == 0
        refused = await run("sinks test crm --send", relay)
        assert "crm takes no sample of any kind; name the kind to send." in refused.stderr
        assert (await run("sinks test crm --send --event lead.captured", relay)).exit_code == 0
        assert len(destination.requests) == 1


async def send(relay: Relay, *ids: str) -> None:
    async with http_client() as client:
        for event_id in ids:
            body = json.dumps({"id": event_id, "event": "lead.captured", "data": {}}).encode()
            head = {"service-signature": signed(body)}
            assert (await client.post(relay.url, content=body, headers=head)).is_success


async def test_pending_deliveries_are_listed_retried_and_discarded(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as relay:
        destination.reply = lambda _: Reply(500)
        await send(relay, "evt_1", "evt_2", "evt_3")
        await until(lambda: len(destination.requests) == 3, what="three tries")
        destination.reply = lambda _: Reply()
        discarded = await run("sinks discard crm --id evt_1", relay)
        assert (discarded.exit_code, discarded.stdout) == (0, "evt_1 of main discarded.\n")
        retried = await run("sinks retry crm --id evt_2", relay)
        assert retried.stdout.startswith(
            "crm is tried now, with 1 delivery that was due later. crm is active, "
        )
        retried = await run("sinks retry crm --json", relay)
        assert json.loads(retried.stdout)["brought_forward"] == 1
        await until(lambda: len(destination.requests) == 5, what="the other two")
        retried = await run("sinks retry crm", relay)
        assert retried.stdout.startswith("crm is tried now. crm is active, ")
        again = await run("sinks discard crm --id evt_1", relay)
        assert again.exit_code != 0
        assert "No delivery of evt_1 to crm is pending." in again.stderr


async def test_a_renamed_sink_is_listed_as_not_configured(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as relay:
        destination.reply = lambda _: Reply(500)
        await send(relay, "evt_1")
        await until(lambda: len(destination.requests) == 1, what="a try")
        relay.config.write_text(relay.config.read_text().replace('"crm"', '"customers"'))
        assert (await run("reload", relay)).exit_code == 0
        lines = (await run("sinks list", relay)).stdout.splitlines()
        assert lines[1].split()[:4] == ["customers", "http", "active", "0"]
        assert lines[2].split()[:5] == ["crm", "-", "not", "configured", "1"]
        discarded = await run("sinks discard crm --id evt_1 --json", relay)
        assert json.loads(discarded.stdout) == {"source": "main", "id": "evt_1", "in_flight": False}
