"""The activity stream and its subscribers."""

import asyncio

import pytest

from relay.telemetry.activity_stream import QUEUE_MAX, Activity, ActivityStream, Subscriber

NOW_MS = 1_750_000_000_000


class Stopped:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        raise AssertionError


async def activities(watcher: Subscriber, count: int) -> list[Activity]:
    async with asyncio.timeout(1):
        return [await anext(watcher) for _ in range(count)]


async def test_every_subscriber_gets_all_activities_in_order() -> None:
    feed = ActivityStream(Stopped())
    first, second = feed.watch(), feed.watch()
    feed.publish("accepted", id="a")
    feed.publish("delivered", id="a")
    expected: list[Activity] = [
        {"what": "accepted", "at_ms": NOW_MS, "id": "a"},
        {"what": "delivered", "at_ms": NOW_MS, "id": "a"},
    ]
    assert await activities(first, 2) == await activities(second, 2) == expected


async def test_a_subscriber_gets_no_earlier_activity() -> None:
    feed = ActivityStream(Stopped())
    feed.publish("accepted", id="a")
    watcher = feed.watch()
    feed.publish("accepted", id="b")
    assert await activities(watcher, 1) == [{"what": "accepted", "at_ms": NOW_MS, "id": "b"}]


async def test_a_stream_knows_whether_it_has_subscribers() -> None:
    feed = ActivityStream(Stopped())
    assert not feed.watched
    watcher = feed.watch()
    assert feed.watched
    watcher.close()
    assert not feed.watched


async def test_activities_are_counted_whether_published_or_not() -> None:
    feed = ActivityStream(Stopped())
    feed.publish("accepted", id="a")
    watcher = feed.watch()
    feed.publish("accepted", id="b")
    feed.count("accepted")
    feed.count("change")
    watcher.close()
    assert feed.counts == {"accepted": 3, "change": 1}
    assert [each["id"] async for each in watcher] == ["b"]


async def test_the_end_of_the_stream_is_seen_at_once() -> None:
    feed = ActivityStream(Stopped())
    assert not await feed.closed_within(0)
    waiting = asyncio.ensure_future(feed.closed_within(60))
    await asyncio.sleep(0)
    feed.close()
    async with asyncio.timeout(1):
        assert await waiting
    assert await feed.closed_within(60)


async def test_a_slow_subscriber_gets_the_number_missed_before_the_next_activity() -> None:
    feed = ActivityStream(Stopped())
    slow = feed.watch()
    for number in range(QUEUE_MAX + 7):
        feed.publish("accepted", id=number)
    (first,) = await activities(slow, 1)
    feed.publish("accepted", id="next")
    received = await activities(slow, QUEUE_MAX + 1)
    assert first["id"] == 0
    assert [each.get("id") for each in received[: QUEUE_MAX - 1]] == list(range(1, QUEUE_MAX))
    assert received[-2:] == [
        {"what": "missed", "at_ms": NOW_MS, "count": 7},
        {"what": "accepted", "at_ms": NOW_MS, "id": "next"},
    ]


async def test_a_slow_subscriber_gets_the_number_missed_without_a_next_activity() -> None:
    feed = ActivityStream(Stopped())
    slow = feed.watch()
    for number in range(QUEUE_MAX + 3):
        feed.publish("accepted", id=number)
    await activities(slow, QUEUE_MAX)
    assert await activities(slow, 1) == [{"what": "missed", "at_ms": NOW_MS, "count": 3}]
    feed.publish("accepted", id="next")
    assert await activities(slow, 1) == [{"what": "accepted", "at_ms": NOW_MS, "id": "next"}]


async def test_a_slow_subscriber_does_not_affect_a_fast_one() -> None:
    feed = ActivityStream(Stopped())
    _slow, quick = feed.watch(), feed.watch()
    for number in range(2 * QUEUE_MAX):
        feed.publish("accepted", id=number)
        assert await activities(quick, 1) == [{"what": "accepted", "at_ms": NOW_MS, "id": number}]


async def test_a_closed_subscriber_gets_the_queued_activities_and_ends() -> None:
    feed = ActivityStream(Stopped())
    watcher = feed.watch()
    feed.publish("accepted", id="a")
    watcher.close()
    feed.publish("accepted", id="b")
    assert [each["id"] async for each in watcher] == ["a"]


async def test_closing_the_stream_ends_every_subscriber() -> None:
    feed = ActivityStream(Stopped())
    watchers = [feed.watch(), feed.watch()]
    waiting = [asyncio.ensure_future(anext(each)) for each in watchers]
    await asyncio.sleep(0)
    feed.close()
    for each in waiting:
        with pytest.raises(StopAsyncIteration):
            await each
    assert not feed.watched


async def test_a_subscriber_gets_only_matching_activities_and_misses_no_others() -> None:
    feed = ActivityStream(Stopped())
    watcher = feed.watch(lambda happening: happening["id"] == "wanted")
    for _ in range(2 * QUEUE_MAX):
        feed.publish("accepted", id="other")
    feed.publish("accepted", id="wanted", at_ms=5)
    assert await activities(watcher, 1) == [{"what": "accepted", "at_ms": 5, "id": "wanted"}]
