"""When the connection of a sink that publishes is opened, shared, replaced and closed."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import SinkSettings
from relay.outbound.connection_health import FUTILE_MAX, ConnectionHealth
from relay.outbound.publishing import PublishingSink

NOT_HERE = Temporary("the server is a replica")
OF_EVENT = Misconfigured("no queue takes it", about_event=True)
DONE = SinkResponse()


class Connection:
    """Answers once it is allowed to, with what the sink is to be told."""

    def __init__(self, answers: dict[str, SinkResponse | SinkError]) -> None:
        self.answers = answers
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_usable = True
        self.is_closed = False
        self.published: list[str] = []

    async def publish(self, messages: Sequence[dict[str, Any]]) -> None:
        self.published += [message["id"] for message in messages]
        may_answer = self.may_answer
        await may_answer.wait()
        for message in messages:
            message["outcome"] = self.answers.get(message["id"], DONE)

    async def close(self) -> None:
        self.is_closed = True


class DoubleSink(PublishingSink[dict[str, Any], Connection]):
    def __init__(self) -> None:
        super().__init__(SinkSettings(name="bus", type="double", timeout=Duration.parse("5s")))
        self.answers: dict[str, SinkResponse | SinkError] = {}
        self.opened: list[Connection] = []

    def _message(self, event: Event) -> dict[str, Any]:
        return {"id": event.id, "outcome": None}

    def _outcome(self, message: dict[str, Any]) -> SinkResponse | Exception | None:
        outcome: SinkResponse | Exception | None = message["outcome"]
        return outcome

    async def _connect(self, replaced: Connection | None) -> Connection:
        self.opened.append(Connection(self.answers))
        return self.opened[-1]

    async def _examine(self, publisher: Connection) -> str:
        return f"one of {len(self.opened)}, closed: {publisher.is_closed}"


@pytest.fixture
def sink() -> DoubleSink:
    return DoubleSink()


async def outcome(sink: DoubleSink, event: Event) -> object:
    (found,) = await sink.send_batch([event])
    return found


@pytest.mark.parametrize(
    ("sends", "is_spent"),
    [
        ([[NOT_HERE]], True),
        ([[DONE, NOT_HERE]], True),
        ([[OF_EVENT]], False),
        ([[OF_EVENT]] * FUTILE_MAX, True),
        ([[OF_EVENT], [DONE, OF_EVENT], [OF_EVENT]], False),
        ([[OF_EVENT], [None], [OF_EVENT]], True),
        ([[OF_EVENT], [Refused("too large")], [OF_EVENT]], True),
        ([[Refused("too large")]] * 9, False),
        ([[ZeroDivisionError()]] * 9, False),
        ([[None]] * 9, False),
    ],
    ids=repr,
)
def test_a_connection_is_judged_by_its_answers(
    sends: list[list[SinkResponse | Exception | None]], is_spent: bool
) -> None:
    health = ConnectionHealth()
    assert [health.is_spent(outcomes) for outcomes in sends][-1] is is_spent


async def test_an_answer_that_no_event_caused_ends_its_connection(
    sink: DoubleSink, lead: Event
) -> None:
    sink.answers[lead.id] = NOT_HERE
    assert await outcome(sink, lead) is NOT_HERE
    sink.answers.clear()
    assert await outcome(sink, lead) == DONE
    await asyncio.sleep(0)
    assert [each.is_closed for each in sink.opened] == [True, False]
    await sink.close()


async def test_a_replaced_connection_closes_once_its_sends_have_their_answers(
    sink: DoubleSink, lead: Event
) -> None:
    await sink.send(lead)
    old, slow, failing = sink.opened[0], replace(lead, id="slow"), replace(lead, id="failing")
    old.may_answer.clear()
    sending = asyncio.create_task(outcome(sink, slow))
    while old.published[-1] != "slow":
        await asyncio.sleep(0)
    held, old.may_answer = old.may_answer, asyncio.Event()
    old.may_answer.set()
    sink.answers["failing"] = NOT_HERE
    assert await outcome(sink, failing) is NOT_HERE
    assert await outcome(sink, lead) == DONE
    assert (len(sink.opened), old.is_closed) == (2, False)
    held.set()
    assert await sending == DONE
    await asyncio.sleep(0)
    assert (old.is_closed, sink.opened[1].is_closed) == (True, False)
    await sink.close()


async def test_a_connection_that_a_broker_asks_to_leave_is_replaced(
    sink: DoubleSink, lead: Event
) -> None:
    await sink.send(lead)
    sink.opened[0].is_usable = False
    await sink.send(lead)
    await asyncio.sleep(0)
    assert [each.is_closed for each in sink.opened] == [True, False]
    await sink.close()


async def test_a_check_has_a_connection_of_its_own(sink: DoubleSink, lead: Event) -> None:
    await sink.send(lead)
    assert await sink.check() == "one of 2, closed: False"
    assert [each.is_closed for each in sink.opened] == [False, True]
    await sink.send(lead)
    assert len(sink.opened) == 2
    await sink.close()


async def test_closing_ends_replaced_connections_too(sink: DoubleSink, lead: Event) -> None:
    await sink.send(lead)
    old = sink.opened[0]
    old.may_answer.clear()
    sending = asyncio.create_task(outcome(sink, lead))
    while len(old.published) < 2:
        await asyncio.sleep(0)
    old.is_usable = False
    await sink.send(replace(lead, id="evt_2"))
    assert not old.is_closed
    await sink.close()
    assert [each.is_closed for each in sink.opened] == [True, True]
    old.may_answer.set()
    await sending


async def test_a_client_that_cancels_itself_ends_only_the_attempt(
    sink: DoubleSink, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = DoubleSink._connect, iter([True])

    async def connect(sink: DoubleSink, replaced: Connection | None) -> Connection:
        if next(broken, False):
            raise asyncio.CancelledError
        return await real(sink, replaced)

    monkeypatch.setattr(DoubleSink, "_connect", connect)
    assert str(await outcome(sink, lead)) == "the client library broke it off"
    assert await outcome(sink, lead) == DONE
    await sink.close()


async def test_nothing_is_published_where_the_client_swallows_a_cancellation(
    sink: DoubleSink, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun = DoubleSink._connect, asyncio.Event()

    async def connect(sink: DoubleSink, replaced: Connection | None) -> Connection:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return await real(sink, replaced)

    monkeypatch.setattr(DoubleSink, "_connect", connect)
    sending = asyncio.create_task(outcome(sink, lead))
    await begun.wait()
    sending.cancel()
    await asyncio.wait({sending})
    assert sending.cancelled()
    assert [each.published for each in sink.opened] == [[]]
    await sink.close()
