"""The stream of open pages: what it says of a change, how often, and what it costs."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import orjson
import pytest

from relay.admin.api import stream
from relay.admin.page.live import HEARTBEAT_S, TOPICS, changes
from relay.telemetry.activity_stream import ActivityStream
from tests.conftest import NOW_MS
from tests.virtual_time import LoopClock, VirtualLoop


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


class Services:
    """The part of the services that the stream reads."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.activity = ActivityStream(self.clock)
        self.started_ms = NOW_MS


@pytest.fixture
async def services() -> Services:
    return Services()


@pytest.fixture
async def messages(services: Services) -> AsyncIterator[AsyncGenerator[bytes, None]]:
    """An open page's messages."""
    async with aclosing(changes(services)) as opened:  # type: ignore[arg-type]
        yield opened


def data(message: bytes) -> dict[str, Any]:
    (line,) = (each for each in message.splitlines() if each.startswith(b"data: "))
    read: dict[str, Any] = orjson.loads(line.removeprefix(b"data: "))
    return read


async def test_the_first_message_comes_at_once_and_names_the_relay_that_answers(
    services: Services, messages: AsyncGenerator[bytes, None]
) -> None:
    services.activity.count("accepted")
    before_s = services.clock.monotonic()
    hello = await anext(messages)
    assert services.clock.monotonic() == before_s
    assert hello.startswith(b"retry: 1000\n")
    assert data(hello) | {"version": ""} == {
        "started_ms": NOW_MS,
        "version": "",
        "topics": [],
        "counts": {"events": 1, "deliveries": 0, "sinks": 0, "config": 0, "changes": 0},
    }


async def test_a_burst_is_one_message_with_the_topics_that_changed(
    services: Services, messages: AsyncGenerator[bytes, None]
) -> None:
    await anext(messages)
    for _ in range(5000):
        services.activity.count("accepted")
    services.activity.publish("state", sink="crm", state="parked")
    begun_s = services.clock.monotonic()
    message = data(await anext(messages))
    assert services.clock.monotonic() - begun_s == pytest.approx(0.25)
    assert message["topics"] == ["events", "sinks"]
    assert (message["counts"]["events"], message["counts"]["sinks"]) == (5000, 1)


async def test_a_page_gets_four_messages_a_second_at_any_load(
    services: Services, messages: AsyncGenerator[bytes, None]
) -> None:
    await anext(messages)
    begun_s = services.clock.monotonic()
    for _ in range(40):
        services.activity.count("delivered")
        assert data(await anext(messages))["topics"] == ["deliveries"]
    assert services.clock.monotonic() - begun_s == pytest.approx(10)


async def test_an_idle_stream_only_shows_that_it_is_alive(
    services: Services, messages: AsyncGenerator[bytes, None]
) -> None:
    await anext(messages)
    begun_s = services.clock.monotonic()
    for beat in range(1, 4):
        assert await anext(messages) == b": idle\n\n"
        assert services.clock.monotonic() - begun_s == pytest.approx(beat * HEARTBEAT_S, abs=0.3)


async def test_open_pages_leave_the_publishing_of_activities_off(
    services: Services, messages: AsyncGenerator[bytes, None]
) -> None:
    await anext(messages)
    assert not services.activity.watched


async def test_the_stream_ends_with_the_relay(
    services: Services, messages: AsyncGenerator[bytes, None]
) -> None:
    await anext(messages)
    ending = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0)
    services.activity.close()
    with pytest.raises(StopAsyncIteration):
        await ending


def test_every_activity_has_a_topic() -> None:
    assert set(TOPICS) == stream.KINDS.keys() - {"missed"} | {"change", "replay"}
