"""What becomes of a batch of the `nats` sink: each event has its own end, in time."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import Outcomes
from relay.sinks.nats.sink import NatsSink
from tests.brokers.nats import NatsServer
from tests.brokers.nats_double import NatsDouble
from tests.sinks.batch import of_kind, series, unfit
from tests.sinks.nats.test_sink import Make, build, make, server
from tests.stub_server import until

__all__ = ["make", "server"]  # fixtures

TOO_LONG = unfit("subject", "is longer than 1024 bytes")
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


def ids(events: Sequence[Any]) -> list[str]:
    return [(message.headers or {})["relay-id"] for message in events]


async def test_the_outcomes_are_in_the_order_of_the_events_and_each_its_own(
    server: NatsServer, make: Make, lead: Event
) -> None:
    sink = make(subject="{{ event }}")
    events = [
        of_kind(each, kind)
        for each, kind in zip(
            series(lead, 5),
            ["relay.x", "elsewhere", "relay.x", "x" * 2000, "relay.x"],
            strict=True,
        )
    ]
    events[2] = replace(events[2], body=events[2].body.ljust(1 << 20))
    found = told(await sink.send_batch(events))
    too_large = found[2]
    assert found == [
        1,
        (Misconfigured, "no stream takes the subject {{ event }}"),
        (Refused, too_large[1]),
        TOO_LONG,
        2,
    ]
    assert too_large[1].endswith("bytes are more than the server's max_payload")
    assert ids(server.read()) == ["evt_0", "evt_4"]
    assert server.connections("all") == 1


async def test_a_subject_that_may_not_be_published_to_fails_alone(
    server: NatsServer, make: Make, lead: Event
) -> None:
    await server.reload(publish="relay.good")
    sink = make(subject="{{ event }}")
    good, bad = of_kind(lead, "relay.good"), of_kind(lead, "relay.Bad")
    outcomes = await sink.send_batch([good, replace(bad, id="evt_2"), replace(good, id="evt_3")])
    forbidden = (Misconfigured, "the user may not publish to this subject")
    assert told(outcomes) == [1, forbidden, 2]


async def test_an_invalid_subject_of_one_event_affects_no_other(make: Make, lead: Event) -> None:
    sink = make(subject="relay.{% if event == 'odd' %}two words{% else %}x{% endif %}")
    outcomes = await sink.send_batch([of_kind(lead, "odd"), replace(lead, id="evt_2")])
    expected = "words with dots between, without blanks, * and >"
    refused = unfit("subject", f"does not fit: expected {expected}")
    assert told(outcomes) == [refused, 1]


async def test_a_bug_in_one_event_does_not_affect_its_neighbours(
    make: Make, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make()
    real = sink._headers
    bug = ZeroDivisionError()

    def headers(event: Event) -> dict[str, str]:
        if event.id == "evt_1":
            raise bug
        return real(event)

    monkeypatch.setattr(sink, "_headers", headers)
    outcomes = await sink.send_batch(series(lead, 3))
    assert outcomes[1] is bug
    assert [each_told(outcomes[place]) for place in (0, 2)] == [1, 2]


async def test_an_event_refused_before_sending_is_refused_without_a_server_too(lead: Event) -> None:
    sink = build(servers="nats://127.0.0.1:1")
    outcomes = await sink.send_batch([of_kind(lead, "x" * 2000), lead])
    assert told(outcomes) == [
        TOO_LONG,
        (Temporary, "connection refused"),
    ]


async def test_concurrent_batches_share_one_connection_and_mix_nothing_up(
    server: NatsServer, make: Make, lead: Event
) -> None:
    sink = make()
    events = series(lead, 200)
    found = await asyncio.gather(*(sink.send_batch(events[n : n + 10]) for n in range(0, 200, 10)))
    seqs = [seq for outcomes in found for seq in told(outcomes)]
    stored = ids(server.read())
    assert [stored[seq - 1] for seq in seqs] == [event.id for event in events]
    assert server.connections("all") == 1


async def test_a_batch_to_a_frozen_server_ends_in_time_and_is_not_delivered_later(
    server: NatsServer, make: Make, lead: Event
) -> None:
    sink = make(subject="relay.fixed", timeout="500ms")
    await sink.send(lead)
    server.freeze()
    # More than the sockets' buffers hold, so that some of it is still here.
    events = series(lead, 12, body=b"x" * 900_000)
    async with asyncio.timeout(5):
        assert told(await sink.send_batch(events)) == [LATE] * len(events)
    server.thaw()
    await sink.send(replace(lead, id="evt_after"))
    assert len(server.read()) < len(events)


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


async def test_a_batch_that_is_cancelled_leaves_nothing_behind(lead: Event) -> None:
    async with NatsDouble(lambda _: False) as double:
        sink = build(servers=double.url)
        sending = asyncio.create_task(sink.send_batch(series(lead, 4)))
        await until(lambda: len(double.read) == 4, what="the batch")
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await until(lambda: not double.open, what="the end of the connection")
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
