"""The stream of open pages: what it says of a change, how often, and what it costs."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import orjson
import pytest

from relay.admin.api import stream
from relay.admin.page.live import (
    HEARTBEAT_S,
    OPEN_MAX,
    OWN_MAX,
    TOPICS,
    LiveStream,
    Streams,
    changes,
)
from relay.core.clock import Instant
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
        self.started = Instant(self.clock)


@pytest.fixture
async def services() -> Services:
    return Services()


@pytest.fixture
async def messages(services: Services) -> AsyncIterator[AsyncGenerator[bytes, None]]:
    """An open page's messages."""
    async with aclosing(changes(services, LiveStream(None))) as opened:  # type: ignore[arg-type]
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
        "accepted": 1,
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
        assert data(await anext(messages))["topics"] == []
        assert services.clock.monotonic() - begun_s == pytest.approx(beat * HEARTBEAT_S, abs=0.3)


async def test_open_pages_do_not_switch_on_the_publishing_of_activities(
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
    assert set(TOPICS) == stream.KINDS.keys() - {"missed"} | {
        "change",
        "replay",
        "reconciliation",
        "arrived elsewhere",
        "settled elsewhere",
        "state elsewhere",
    }


class Opener:
    """Opens streams, and says which go on."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._streams = Streams()
        self.authorized = True
        self.opened: list[tuple[str, AsyncGenerator[bytes, None]]] = []

    async def open(self, owner: str) -> None:
        async def is_authorized() -> bool:
            return self.authorized

        answer = self._streams.open(self._services, owner.encode(), is_authorized)  # type: ignore[arg-type]
        lines: Any = answer.body_iterator  # type: ignore[attr-defined]
        await anext(lines)
        self.opened.append((owner, lines))

    async def live(self) -> list[str]:
        """The owners of the streams that have not ended."""
        self._services.activity.count("accepted")
        return [owner for owner, lines in self.opened if await anext(lines, None) is not None]


async def test_a_session_has_a_few_streams_and_the_latest_go_on(services: Services) -> None:
    opener = Opener(services)
    await opener.open("other")
    for _ in range(OWN_MAX + 3):
        await opener.open("greedy")
    live = await opener.live()
    assert live == ["other"] + ["greedy"] * OWN_MAX
    assert len(opener.opened) == OWN_MAX + 4


async def test_beyond_the_limit_a_stream_of_the_session_with_the_most_ends(
    services: Services,
) -> None:
    opener = Opener(services)
    names = [*(["greedy"] * OWN_MAX), *(f"tab-{number}" for number in range(OPEN_MAX - OWN_MAX))]
    for name in [*names, "late"]:
        await opener.open(name)
    assert sorted(await opener.live()) == sorted([*names[1:], "late"])


async def test_a_stream_ends_with_its_session_although_nothing_happens(services: Services) -> None:
    opener = Opener(services)
    await opener.open("a")
    ((_, lines),) = opener.opened
    assert data(await anext(lines))["topics"] == []
    opener.authorized = False
    assert await anext(lines, None) is None


async def test_a_stream_that_has_ended_makes_room(services: Services) -> None:
    opener = Opener(services)
    for _ in range(OWN_MAX):
        await opener.open("a")
    await opener.opened[0][1].aclose()
    await opener.open("a")
    opener.opened.pop(0)
    assert await opener.live() == ["a"] * OWN_MAX
