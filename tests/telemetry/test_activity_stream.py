"""The feed of what happens, and those who watch it."""

import asyncio

import pytest

from relay.telemetry.activity_stream import QUEUE_MAX, Activity, ActivityStream, Subscriber

NOW_MS = 1_750_000_000_000


class Stopped:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        raise AssertionError


async def seen(watcher: Subscriber, count: int) -> list[Activity]:
    async with asyncio.timeout(1):
        return [await anext(watcher) for _ in range(count)]


async def test_all_who_watch_are_told_in_order() -> None:
    feed = ActivityStream(Stopped())
    first, second = feed.watch(), feed.watch()
    feed.publish("accepted", id="a")
    feed.publish("delivered", id="a")
    told: list[Activity] = [
        {"what": "accepted", "at_ms": NOW_MS, "id": "a"},
        {"what": "delivered", "at_ms": NOW_MS, "id": "a"},
    ]
    assert await seen(first, 2) == await seen(second, 2) == told


async def test_a_watcher_sees_nothing_of_what_was_before() -> None:
    feed = ActivityStream(Stopped())
    feed.publish("accepted", id="a")
    watcher = feed.watch()
    feed.publish("accepted", id="b")
    assert await seen(watcher, 1) == [{"what": "accepted", "at_ms": NOW_MS, "id": "b"}]


async def test_a_feed_knows_whether_anybody_watches() -> None:
    feed = ActivityStream(Stopped())
    assert not feed.watched
    watcher = feed.watch()
    assert feed.watched
    watcher.close()
    assert not feed.watched


async def test_a_slow_watcher_misses_some_and_is_told_how_many_before_what_comes_next() -> None:
    feed = ActivityStream(Stopped())
    slow = feed.watch()
    for number in range(QUEUE_MAX + 7):
        feed.publish("accepted", id=number)
    (first,) = await seen(slow, 1)
    feed.publish("accepted", id="next")
    told = await seen(slow, QUEUE_MAX + 1)
    assert first["id"] == 0
    assert [each.get("id") for each in told[: QUEUE_MAX - 1]] == list(range(1, QUEUE_MAX))
    assert told[-2:] == [
        {"what": "missed", "at_ms": NOW_MS, "count": 7},
        {"what": "accepted", "at_ms": NOW_MS, "id": "next"},
    ]


async def test_a_slow_watcher_is_told_what_it_missed_although_nothing_more_happens() -> None:
    feed = ActivityStream(Stopped())
    slow = feed.watch()
    for number in range(QUEUE_MAX + 3):
        feed.publish("accepted", id=number)
    await seen(slow, QUEUE_MAX)
    assert await seen(slow, 1) == [{"what": "missed", "at_ms": NOW_MS, "count": 3}]
    feed.publish("accepted", id="next")
    assert await seen(slow, 1) == [{"what": "accepted", "at_ms": NOW_MS, "id": "next"}]


async def test_a_slow_watcher_takes_nothing_from_a_quick_one() -> None:
    feed = ActivityStream(Stopped())
    _slow, quick = feed.watch(), feed.watch()
    for number in range(2 * QUEUE_MAX):
        feed.publish("accepted", id=number)
        assert await seen(quick, 1) == [{"what": "accepted", "at_ms": NOW_MS, "id": number}]


async def test_a_watcher_that_is_closed_gets_what_was_before_and_ends() -> None:
    feed = ActivityStream(Stopped())
    watcher = feed.watch()
    feed.publish("accepted", id="a")
    watcher.close()
    feed.publish("accepted", id="b")
    assert [each["id"] async for each in watcher] == ["a"]


async def test_a_feed_that_is_closed_lets_every_watcher_end() -> None:
    feed = ActivityStream(Stopped())
    watchers = [feed.watch(), feed.watch()]
    waiting = [asyncio.ensure_future(anext(each)) for each in watchers]
    await asyncio.sleep(0)
    feed.close()
    for each in waiting:
        with pytest.raises(StopAsyncIteration):
            await each
    assert not feed.watched


async def test_a_watcher_is_handed_only_what_it_wants_and_misses_nothing_else() -> None:
    feed = ActivityStream(Stopped())
    watcher = feed.watch(lambda happening: happening["id"] == "wanted")
    for _ in range(2 * QUEUE_MAX):
        feed.publish("accepted", id="other")
    feed.publish("accepted", id="wanted", at_ms=5)
    assert await seen(watcher, 1) == [{"what": "accepted", "at_ms": 5, "id": "wanted"}]
