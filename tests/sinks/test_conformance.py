"""What every sink does, whatever its destination: each test is one fact, tried on every type."""

import asyncio
import json
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from email.utils import formatdate
from urllib.parse import unquote

import msgspec
import pytest
from msgspec.structs import replace

from relay import sinks
from relay.core import sample_events
from relay.core.delivery import SinkResponse
from relay.core.errors import InvalidTemplate, Misconfigured, Refused, SinkError, Temporary
from relay.core.event import LEAD_CAPTURED, Event
from relay.core.sink import BatchSink, Sink
from relay.core.watch_history import VIDEOS_MAX, WatchedVideo, WatchHistory
from relay.outbound import message
from tests.conftest import ManualClock
from tests.sinks import test_tls
from tests.sinks.batch import kinds, series
from tests.sinks.conformance import (
    Connected,
    Harness,
    Limited,
    Throttling,
    Varying,
    built,
    error_of,
)
from tests.sinks.conftest import Closing
from tests.sinks.harnesses import BATCHING, HARNESSES, PARAMETERS, entered
from tests.stub_server import DEADLINE_S, until

Build = Callable[..., BatchSink]

WATCHED = WatchHistory.of(
    [WatchedVideo(id="vid_tour", title="Product tour", milestone="75%", last_ms=1_772_443_000_000)]
)
HOSTILE_TITLES = (
    "<!channel> <https://evil.example|Refund> & `code`",
    "a\r\nx-injected: yes\r\n\r\nbody",
    "\x00\x1b[2J\u202e\ud800 ü漢😀" * 40,
    '"}], "id": "evt_forged", %22%0d%0a',
)


@pytest.fixture(params=PARAMETERS)
async def destination(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with entered(request) as harness:
        yield harness


@pytest.fixture(params=BATCHING)
async def batching(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with entered(request) as harness:
        yield harness


@pytest.fixture
async def build(clock: ManualClock) -> AsyncIterator[Build]:
    built: list[BatchSink] = []

    def build(harness: Harness, **changed: object) -> BatchSink:
        sink = harness.build(clock, **changed)
        assert isinstance(sink, BatchSink)
        built.append(sink)
        return sink

    yield build
    for sink in built:
        await sink.close()


@pytest.fixture
def sink(destination: Harness, clock: ManualClock, closing: Closing) -> Sink:
    return closing(destination.build(clock))


async def arrived(destination: Harness, count: int) -> None:
    await until(lambda: len(destination.messages()) >= count, what=f"{count} messages")


def test_every_sink_type_has_a_harness() -> None:
    assert set(sinks.names()) == {kind.sink_type for kind in HARNESSES}


@pytest.mark.parametrize("kind", HARNESSES)
def test_every_deviation_names_a_fact(kind: type[Harness]) -> None:
    names = (*globals(), *vars(test_tls))
    facts = {name.removeprefix("test_") for name in names if name.startswith("test_")}
    assert set(kind.deviations) <= facts


async def test_one_send_is_exactly_one_message(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    await sink.send(lead)
    await arrived(destination, 1)
    await sink.close()
    assert len(destination.messages()) == 1


async def test_the_event_id_travels_with_the_message(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    await sink.send(lead)
    await arrived(destination, 1)
    assert destination.messages()[0].id == lead.id


async def test_twenty_at_once_all_arrive(destination: Harness, sink: Sink) -> None:
    events = [sample_events.event(LEAD_CAPTURED, event_id=f"evt_{number}") for number in range(20)]
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        for event in events:
            group.create_task(sink.send(event))
    await arrived(destination, 20)
    assert sorted(message.id for message in destination.messages()) == sorted(e.id for e in events)


@pytest.mark.parametrize(
    "body",
    [
        b'  { "id":"evt_1" ,"n":1.0e+2, "big":1234567890123456789012345, "u":"\\u00fc\xc3\xbc"}  ',
        b'{"id":"evt_1","b":"\\r\\n\\/","z":-0.0,"a":"' + b"x" * 200_000 + b'"}',
    ],
    ids=["spelling", "large"],
)
async def test_a_raw_body_arrives_byte_for_byte(
    destination: Harness, sink: Sink, lead: Event, body: bytes
) -> None:
    await sink.send(replace(lead, body=body))
    await arrived(destination, 1)
    assert not destination.raw or destination.messages()[0].content == body


async def test_the_videos_that_a_lead_has_watched_are_sent_beside_the_body(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    await sink.send(replace(lead, watch_history=WATCHED))
    await arrived(destination, 1)
    (message,) = destination.messages()
    assert message.watched is not None
    assert "Product tour" in message.watched
    assert "75%" in message.watched
    assert not destination.raw or message.content == lead.body


async def test_a_lead_without_a_known_history_is_sent_without_one(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    await sink.send(lead)
    await arrived(destination, 1)
    assert destination.messages()[0].watched is None


async def test_no_title_can_break_a_message(destination: Harness, sink: Sink, lead: Event) -> None:
    for number, title in enumerate(HOSTILE_TITLES):
        history = WatchHistory.of([WatchedVideo(id=title, title=title)] * VIDEOS_MAX)
        await sink.send(replace(lead, id=f"evt_{number}", watch_history=history))
    await arrived(destination, len(HOSTILE_TITLES))
    for watched in [each.watched for each in destination.messages()]:
        assert watched is not None
        assert watched.isprintable()


async def test_cloudevents_have_an_extension_attribute_for_it(
    destination: Harness, clock: ManualClock, lead: Event
) -> None:
    sink = destination.build(clock, format="cloudevents")
    try:
        await sink.send(replace(lead, watch_history=WATCHED))
        await arrived(destination, 1)
        watched = destination.messages()[0].watched
        assert watched is not None
        assert json.loads(unquote(watched))["watched"][0]["milestone"] == "75%"
    finally:
        await sink.close()


async def test_the_videos_that_a_lead_has_watched_can_be_shown(sink: Sink, lead: Event) -> None:
    assert "Product tour" in json.dumps(sink.render(replace(lead, watch_history=WATCHED)))
    assert "Product tour" not in json.dumps(sink.render(lead))


async def test_a_transient_error_is_temporary(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    await each_comes_out_as(Temporary, destination, sink, lead)


async def test_a_refusal_is_of_this_event_alone(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    await each_comes_out_as(Refused, destination, sink, lead)


async def test_an_error_that_needs_an_operator_is_misconfigured(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    await each_comes_out_as(Misconfigured, destination, sink, lead)


async def each_comes_out_as(
    kind: type[SinkError], destination: Harness, sink: Sink, event: Event
) -> None:
    failures = destination.all_of(kind)
    assert failures, "a type without such a failure has to declare it"
    for how in failures:
        await destination.fail(how)
        error = await error_of(sink, event)
        assert (how, type(error)) == (how, kind)
        assert error.reason.startswith(destination.reasons.get(how, "")), how
        await destination.recover()
        # The same sink goes on once the destination does.
        before = len(destination.messages())
        await sink.send(event)
        await arrived(destination, before + 1)


async def test_retry_after_is_kept_in_both_forms(
    destination: Harness, sink: Sink, lead: Event, clock: ManualClock
) -> None:
    assert isinstance(destination, Throttling), "a type without it has to declare it"
    for text in ("90", formatdate(clock.ms / 1000 + 90, usegmt=True)):
        destination.throttle(text)
        error = await error_of(sink, lead)
        assert isinstance(error, Temporary)
        assert error.retry_after_ms == 90_000


async def test_a_hanging_destination_is_disconnected_at_once(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    await destination.hang()
    sending = asyncio.create_task(sink.send(lead))
    await asyncio.sleep(0.05)
    assert not sending.done()
    sending.cancel()
    async with asyncio.timeout(1):
        await asyncio.wait({sending})
    assert sending.cancelled()
    await destination.recover()
    await sink.send(sample_events.event(LEAD_CAPTURED, event_id="evt_next"))
    await until(lambda: destination.messages()[-1].id == "evt_next", what="the next event")


async def test_many_cancelled_sends_use_nothing_up(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    await destination.hang()
    for _ in range(2):
        sending = [asyncio.create_task(sink.send(lead)) for _ in range(20)]
        await asyncio.sleep(0.05)
        for task in sending:
            task.cancel()
        await asyncio.wait(sending)
    await destination.recover()
    async with asyncio.timeout(DEADLINE_S):
        await sink.send(lead)


async def test_a_loss_ends_what_waits(destination: Harness, sink: Sink, lead: Event) -> None:
    assert destination.down is not None, "a type without one has to declare it"
    await sink.send(lead)
    await destination.hang()
    events = [replace(lead, id=f"evt_{number}") for number in range(8)]
    sending = [asyncio.create_task(sink.send(event)) for event in events]
    await asyncio.sleep(0.05)
    await destination.fail(destination.down)
    async with asyncio.timeout(5):
        errors = await asyncio.gather(*sending, return_exceptions=True)
    assert {type(error) for error in errors} == {Temporary}


async def test_a_frozen_destination_gets_nothing_later_that_was_given_up(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    await sink.send(lead)
    await destination.hang()
    # More than the sockets' buffers hold, so that some of it is still here.
    large = replace(lead, body=lead.body.ljust(900_000))
    sending = [asyncio.create_task(sink.send(replace(large, id=f"evt_{n}"))) for n in range(12)]
    await asyncio.wait(sending, timeout=0.2)
    for task in sending:
        task.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait(sending)
    assert all(task.cancelled() for task in sending)
    await destination.recover()
    await sink.send(replace(lead, id="evt_after"))
    await until(lambda: destination.messages()[-1].id == "evt_after", what="the next event")
    assert len(destination.messages()) < len(sending)


async def test_a_batch_ends_in_the_sinks_own_time(
    batching: Harness, build: Build, lead: Event
) -> None:
    sink = build(batching, timeout="1s")
    # On a busy machine, the first connection alone may take that long.
    async with asyncio.timeout(DEADLINE_S):
        while kinds(await sink.send_batch([lead])) != [SinkResponse]:
            pass
    await batching.hang()
    async with asyncio.timeout(5):
        outcomes = await sink.send_batch(series(lead, 3))
    assert kinds(outcomes) == [Temporary] * 3


async def test_each_event_of_a_batch_has_an_outcome_of_its_own_in_their_order(
    batching: Harness, build: Build, lead: Event
) -> None:
    assert isinstance(batching, Varying)
    variety = await batching.vary(lead)
    good, bad, unfit = variety.good, variety.bad, variety.unfit
    outcomes = await build(batching, **variety.table).send_batch(
        numbered(good, bad, good, unfit, good)
    )
    taken = SinkResponse
    assert kinds(outcomes) == [taken, variety.error, taken, Refused, taken]
    assert isinstance(outcomes[3], Refused)
    assert outcomes[3].unsent
    assert arrived_ids(batching) == {"evt_0", "evt_2", "evt_4"}


async def test_batches_at_once_mix_nothing_up(batching: Harness, build: Build, lead: Event) -> None:
    assert isinstance(batching, Varying)
    variety = await batching.vary(lead)
    sink = build(batching, **variety.table, timeout="30s")
    await sink.send(variety.good)
    events = numbered(*(variety.good if n % 3 else variety.bad for n in range(100)))
    batches = [sink.send_batch(events[start : start + 10]) for start in range(0, 100, 10)]
    found = [kind for outcomes in await asyncio.gather(*batches) for kind in kinds(outcomes)]
    assert found == [SinkResponse if n % 3 else variety.error for n in range(100)]
    good = {event.id for number, event in enumerate(events) if number % 3}
    assert arrived_ids(batching) == good | {variety.good.id}


async def test_batches_share_one_connection(batching: Harness, build: Build, lead: Event) -> None:
    assert isinstance(batching, Connected)
    sink = build(batching)
    before, events = batching.contacts(), series(lead, 100)
    await asyncio.gather(*(sink.send_batch(events[start::10]) for start in range(10)))
    assert batching.contacts() == before + 1
    assert len(arrived_ids(batching)) == 100


async def test_a_bug_in_one_event_does_not_affect_its_neighbours(
    batching: Harness, build: Build, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, bug = message.identity, ZeroDivisionError()

    def identity(event: Event, form: message.Format, *, prefix: str) -> Mapping[str, str]:
        if event.id == "evt_1":
            raise bug
        return real(event, form, prefix=prefix)

    monkeypatch.setattr(message, "identity", identity)
    outcomes = await build(batching).send_batch(series(lead, 3))
    assert outcomes[1] is bug
    assert kinds(outcomes[::2]) == [SinkResponse] * 2
    assert arrived_ids(batching) == {"evt_0", "evt_2"}


async def test_an_event_refused_before_sending_is_refused_without_a_destination_too(
    batching: Harness, build: Build, lead: Event
) -> None:
    assert isinstance(batching, Varying)
    variety = await batching.vary(lead)
    assert batching.down is not None
    await batching.fail(batching.down)
    outcomes = await build(batching, **variety.table).send_batch([variety.unfit, variety.good])
    assert kinds(outcomes) == [Refused, Temporary]
    assert isinstance(outcomes[0], Refused)
    assert outcomes[0].unsent


async def test_an_event_that_is_too_large_spares_the_others(
    batching: Harness, build: Build, lead: Event
) -> None:
    assert isinstance(batching, Limited), "a type without it has to declare it"
    too_many = await batching.limit() + 1
    events = series(lead, 30)
    events[20] = replace(events[20], body=lead.body.ljust(too_many))
    outcomes = await build(batching).send_batch(events)
    assert kinds(outcomes) == [SinkResponse] * 20 + [Refused] + [SinkResponse] * 9
    assert arrived_ids(batching) == {event.id for event in events} - {"evt_20"}


async def test_no_secret_and_no_body_shows_in_an_error(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    for how in destination.failures:
        await destination.fail(how)
        error = await error_of(sink, lead)
        for secret in (*destination.secrets, *personal(lead)):
            assert not [text for text in told(error) if secret in text], how
        await destination.recover()


async def test_no_secret_shows_in_the_settings(destination: Harness) -> None:
    settings = destination.settings()
    for secret in destination.secrets:
        assert secret not in f"{settings!r} {settings}"


async def test_the_message_can_be_rendered_without_secrets(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    shown = json.dumps(sink.render(lead))
    assert shown != "{}"
    for secret in destination.secrets:
        assert secret not in shown
    assert destination.messages() == []


async def test_a_check_delivers_nothing(destination: Harness, sink: Sink) -> None:
    await sink.check()
    assert destination.messages() == []


async def test_a_destination_that_is_down_is_temporary_and_found_by_a_check(
    destination: Harness, sink: Sink, lead: Event
) -> None:
    assert destination.down is not None, "a type without one has to declare it"
    await destination.fail(destination.down)
    assert type(await error_of(sink, lead)) is Temporary
    with pytest.raises(Temporary):
        await sink.check()


async def test_closing_twice_is_fine(destination: Harness, sink: Sink, lead: Event) -> None:
    await sink.send(lead)
    await arrived(destination, 1)
    await sink.close()
    await sink.close()


async def test_a_sink_that_was_never_used_can_be_closed(sink: Sink) -> None:
    await sink.close()


async def test_building_opens_no_connection(destination: Harness, sink: Sink) -> None:
    assert isinstance(destination, Connected), "a type without any has to declare it"
    await asyncio.sleep(0.02)
    assert destination.contacts() == 0
    await sink.check()
    assert destination.contacts() == 1


async def test_no_connection_is_left_open(destination: Harness, sink: Sink, lead: Event) -> None:
    assert isinstance(destination, Connected), "a type without any has to declare it"
    await asyncio.gather(*(sink.send(lead) for _ in range(8)))
    assert destination.connections() > 0
    await sink.close()
    await until(lambda: destination.connections() == 0, what="the end of the last connection")


async def test_an_unknown_key_is_named(destination: Harness) -> None:
    with pytest.raises(msgspec.ValidationError, match="no_such_key"):
        destination.settings(no_such_key=1)


async def test_a_wrong_type_is_named(destination: Harness) -> None:
    for key, value in destination.wrong_values().items():
        with pytest.raises(msgspec.ValidationError, match=rf"\$\.{key}"):
            destination.settings(**{key: value})


@pytest.mark.parametrize(
    ("kind", "changed", "reason"),
    [
        pytest.param(kind, *fault, id=f"{kind.sink_type}-{number}")
        for kind in HARNESSES
        for number, fault in enumerate(kind.faults)
    ],
)
def test_a_faulty_setting_is_named_and_not_repeated(
    kind: type[Harness], changed: Mapping[str, object], reason: str
) -> None:
    with pytest.raises((ValueError, InvalidTemplate), match=f"^{reason}") as caught:
        built(kind.sink_type, **{**kind.bare, **changed})
    assert "marked" not in str(caught.value)


@pytest.mark.parametrize("kind", HARNESSES)
def test_a_message_can_be_shown_without_a_destination(kind: type[Harness]) -> None:
    sink = built(kind.sink_type, **kind.bare)
    shown = sink.render(sample_events.event(LEAD_CAPTURED))
    assert "evt_sample" in json.dumps(shown)
    assert {key: shown.get(key) for key in kind.shown} == kind.shown


def numbered(*events: Event) -> list[Event]:
    return [replace(event, id=f"evt_{number}") for number, event in enumerate(events)]


def arrived_ids(destination: Harness) -> set[str]:
    return {message.id for message in destination.messages()}


def personal(event: Event) -> Iterator[str]:
    data = event.document()["data"]
    yield data["email"]


def told(error: SinkError) -> Iterator[str]:
    """Everything that a log, a store or a debugger could get out of an error."""
    yield "".join(traceback.format_exception(error))
    cause: BaseException | None = error
    while cause is not None:
        yield repr(cause)
        yield repr(vars(cause))
        yield repr([repr(value) for value in vars(cause).values()])
        cause = cause.__cause__ or cause.__context__
