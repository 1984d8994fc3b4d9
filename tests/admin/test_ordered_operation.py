"""Operations on an ordered sink: inspection, erasure, and reload while it sends."""

from pathlib import Path

import orjson
import pytest

from tests.app.reloading import ids, party, sink
from tests.caller import post
from tests.cli.scene import Scene, plain
from tests.guarantees.process import Relay, until
from tests.guarantees.traffic import post as post_signed
from tests.operator import ADMIN
from tests.stub_server import Reply, StubServer
from tests.stub_server import until as soon

ANN = "ann.lee@example.com"
_RETRY = 'retry = { first = "1h" }\n'


def watched(event_id: str, viewer: str, video: str = "vid_1") -> bytes:
    data = {"video": {"id": video}, "viewer": {"email": viewer}, "milestone": "50%"}
    return orjson.dumps({"id": event_id, "event": "video.watched", "data": data})


@pytest.mark.servers
async def test_erasing_an_event_releases_the_next_of_its_ordering_key(
    tmp_path: Path, destination: StubServer
) -> None:
    destination.reply = lambda request: Reply(503 if ANN.encode() in request.body else 200)
    crm = sink("crm", destination.url(), f'ordered = "video"\nconcurrency = 4\n{_RETRY}')
    async with Relay(tmp_path, sinks=crm, rest=ADMIN) as relay:
        await relay.start()
        for event_id, viewer in (("a", ANN), ("b", "bob@example.com")):
            answer = await post_signed(relay.url, watched(event_id, viewer))
            assert answer.is_success
        await post_signed(relay.url, watched("c", "bob@example.com", "vid_2"))
        await until(lambda: sorted(ids(destination)) == ["a", "c"], what="the other video's event")
        shown = [plain(line) for line in await Scene(tmp_path).run("events show b")]
        assert "crm pending, waits for an earlier event" in shown
        await Scene(tmp_path).run(f"erase {ANN}")
        # Long before the dispatcher's next poll.
        await soon(lambda: ids(destination)[-1] == "b", what="the event behind the erased one")


async def test_a_sink_that_becomes_ordered_keeps_its_connection_and_orders_new_events(
    tmp_path: Path, destination: StubServer
) -> None:
    held = [b'"a2"']
    destination.reply = lambda request: Reply(
        429 if any(each in request.body for each in held) else 200
    )
    url, more = (
        destination.url(),
        "concurrency = 1\nretry = { first = '200ms', factor = 1.0 }\n",
    )
    async with party(tmp_path, sink("crm", url, more)) as there:
        await there.relay.ask(post(watched("a1", ANN)))
        await soon(lambda: ids(destination) == ["a1"], what="the first event")
        changes = await there.reload(sink("crm", url, f'ordered = "viewer"\n{more}'))
        assert (changes["rerouted"], changes["sinks"]["changed"]) == (["crm"], [])
        for event_id, viewer in (("a2", ANN), ("a3", ANN), ("b1", "bob@example.com")):
            await there.relay.ask(post(watched(event_id, viewer)))
        await soon(lambda: ids(destination).count("a2") > 1, what="the second try")
        assert set(ids(destination)) == {"a1", "a2", "b1"}
        held.clear()
        await soon(lambda: ids(destination)[-2:] == ["a2", "a3"], what="the rest in order")
        assert destination.accepted == 1
