"""What becomes of a batch of the `nats` sink: each event has its own end, in time."""

import asyncio
import json
import time
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import Outcomes
from relay.sinks.nats.sink import NatsSink
from tests.brokers.nats import NatsServer
from tests.brokers.nats_double import NatsDouble
from tests.sinks.batch import of_kind, series
from tests.sinks.nats.conftest import Make, build
from tests.stub_server import until

LATE = (Temporary, "no answer within 0.5 s")
LOST = (Temporary, "the connection was lost")


def told(outcomes: Outcomes) -> list[Any]:
    """An answer as the place in the stream, an error as its type and reason."""
    return [each_told(outcome) for outcome in outcomes]


def each_told(outcome: SinkResponse | Exception) -> Any:
    if isinstance(outcome, SinkError):
        return type(outcome), outcome.reason
    assert isinstance(outcome, SinkResponse)
    return json.loads(outcome.excerpt)["seq"]


def heard(sink: NatsSink) -> int:
    """The number of the last that was answered, in the order of asking."""
    return 0 if sink._publisher is None else sink._publisher._answered


async def test_a_subject_that_may_not_be_published_to_fails_alone(
    server: NatsServer, make: Make, lead: Event
) -> None:
    await server.reload(publish="relay.good")
    sink = make(subject="{{ event }}")
    good, bad = of_kind(lead, "relay.good"), of_kind(lead, "relay.Bad")
    outcomes = await sink.send_batch([good, replace(bad, id="evt_2"), replace(good, id="evt_3")])
    forbidden = (Misconfigured, "the user may not publish to this subject")
    assert told(outcomes) == [1, forbidden, 2]


async def test_events_confirmed_before_a_server_froze_are_delivered(lead: Event) -> None:
    async with NatsDouble(lambda id_: id_ < "evt_5") as double:
        sink = build(servers=double.url, timeout="500ms")
        assert told(await sink.send_batch(series(lead, 8))) == [1, 2, 3, 4, 5, LATE, LATE, LATE]
        # Nothing of what is there still may come later.
        await until(lambda: not double.open, what="the end of the connection")
        await sink.close()


async def test_a_server_that_answers_later_messages_stays_connected(lead: Event) -> None:
    async with NatsDouble(lambda id_: id_ != "evt_1") as double:
        sink = build(servers=double.url, timeout="500ms")
        assert told(await sink.send_batch(series(lead, 3))) == [1, LATE, 3]
        assert told(await sink.send_batch([replace(lead, id="evt_after")])) == [4]
        assert double.accepted == 1
        await sink.close()


async def test_a_late_response_is_not_taken_for_another_request(lead: Event) -> None:
    async with NatsDouble(lambda id_: id_ != "evt_0") as double:
        sink = build(servers=double.url, timeout="500ms")
        assert told(await sink.send_batch(series(lead, 2))) == [LATE, 2]
        double.catch_up()
        assert told(await sink.send_batch([replace(lead, id="evt_after")])) == [3]
        await sink.close()


async def test_a_loss_ends_a_batch_at_once_and_keeps_what_was_answered(lead: Event) -> None:
    async with NatsDouble(lambda id_: id_ == "evt_2") as double:
        sink = build(servers=double.url)
        started_s = time.monotonic()
        sending = asyncio.create_task(sink.send_batch(series(lead, 4)))
        await until(lambda: heard(sink) == 3, what="the answer to the third")
        double.hang_up()
        assert told(await sending) == [LOST, LOST, 3, LOST]
        assert time.monotonic() - started_s < 5
        await sink.close()


async def test_a_connection_that_is_gone_is_asked_nothing(lead: Event) -> None:
    async with NatsDouble(lambda _: True) as double:
        sink = build(servers=double.url)
        await sink.send(lead)
        connection = sink._publisher
        assert connection is not None
        await connection.close()
        with pytest.raises(Temporary, match="the connection was lost"):
            await connection.request("relay.x", b"{}")
        assert told(await sink.send_batch(series(lead, 2))) == [2, 3]
        assert double.accepted == 2
        await sink.close()
