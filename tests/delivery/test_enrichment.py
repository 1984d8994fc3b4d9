"""A lead's message says what the person has watched, and never waits or fails for it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog

from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import Event
from relay.core.timeouts import TICK_S
from relay.core.watch_history import WatchedVideo, WatchHistory
from relay.delivery.enrichment import DISLIKED_MAX, FAILURES_MAX
from tests.delivery.dispatching import Bench, ScriptedBatches, ScriptedSink, policy, working

HISTORY = WatchHistory.of([WatchedVideo(id="vid_1", title="Tour")])
LIMIT_S = 2.0
FORBIDDEN = Misconfigured("403: forbidden", status=403, about_event=True)


class Enricher:
    """Answers after a number of seconds, or raises."""

    def __init__(
        self, *, after_s: float = 0.0, answer: WatchHistory | Exception | None = HISTORY
    ) -> None:
        self.after_s = after_s
        self.answer = answer
        self.asked: list[str] = []
        self.cancelled: list[str] = []

    async def watch_history(self, event: Event) -> WatchHistory | None:
        self.asked.append(event.id)
        try:
            await asyncio.sleep(self.after_s)
        except asyncio.CancelledError:
            self.cancelled.append(event.id)
            raise
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Seeing(ScriptedSink):
    """Notes which events came with a history; dislikes those if it is told to."""

    def __init__(self, dislike: Exception | None = None) -> None:
        super().__init__()
        self.seen: list[tuple[str, bool]] = []
        self._dislike = dislike

    async def send(self, event: Event) -> SinkResponse:
        with_history = event.watch_history is not None
        self.seen.append((event.id, with_history))
        if with_history and self._dislike is not None:
            self.reply(self._dislike, to=event.id)
        return await super().send(event)


class SeeingBatches(Seeing, ScriptedBatches):
    """The same with batches."""


def enriching(folder: Path, enricher: Enricher, sink: Seeing, **settings: Any) -> Any:
    return working(folder, sink=sink, enricher=enricher, **{"enrich": True, **settings})


async def sent(bench: Bench, *ids: str) -> None:
    await bench.accept(*ids)
    await bench.settled()


async def test_a_lead_is_sent_with_what_the_person_has_watched(tmp_path: Path) -> None:
    enricher, sink = Enricher(), Seeing()
    async with enriching(tmp_path, enricher, sink) as bench:
        await sent(bench, "a")
    assert sink.seen == [("a", True)]


async def test_a_sink_without_enrich_requests_no_history(tmp_path: Path) -> None:
    enricher, sink = Enricher(), Seeing()
    async with enriching(tmp_path, enricher, sink, enrich=False) as bench:
        await sent(bench, "a")
    assert (enricher.asked, sink.seen) == ([], [("a", False)])


async def test_a_message_waits_no_longer_than_its_limit_and_is_sent_without_a_history(
    tmp_path: Path,
) -> None:
    enricher, sink = Enricher(after_s=3600), Seeing()
    async with enriching(tmp_path, enricher, sink, enrich_timeout=Duration.parse("2s")) as bench:
        await sent(bench, "a")
    assert sink.seen == [("a", False)]
    assert sink.times == [LIMIT_S]
    assert enricher.cancelled == ["a"]


async def test_the_wait_does_not_count_towards_the_sinks_own_time_limit(tmp_path: Path) -> None:
    enricher, sink = Enricher(after_s=1.9), Seeing()
    async with enriching(tmp_path, enricher, sink, timeout=Duration.parse("1s")) as bench:
        bench.sink.always = 0.5
        await sent(bench, "a")
        assert bench.sample("relay_attempt_seconds_sum") <= 0.5 + TICK_S
    assert sink.seen == [("a", True)]


async def test_the_leads_of_a_batch_are_asked_for_together(tmp_path: Path) -> None:
    enricher, sink = Enricher(after_s=1.5), SeeingBatches()
    async with enriching(tmp_path, enricher, sink, concurrency=8) as bench:
        await sent(bench, "a", "b", "c", "d")
        assert max(sink.times) <= 2 * 1.5
    assert sorted(sink.seen) == [(name, True) for name in "abcd"]


async def test_a_failing_enricher_is_logged_and_the_message_is_sent_without_a_history(
    tmp_path: Path,
) -> None:
    enricher, sink = Enricher(answer=ZeroDivisionError("ada@example.com")), Seeing()
    with structlog.testing.capture_logs() as lines:
        async with enriching(tmp_path, enricher, sink) as bench:
            await sent(bench, "a")
    assert sink.seen == [("a", False)]
    (line,) = [line for line in lines if line["event"] == "enrichment.bug"]
    assert "ada@example.com" not in str(line)


async def test_a_message_refused_with_a_history_is_sent_once_more_without_it(
    tmp_path: Path,
) -> None:
    sink = Seeing(dislike=Refused("431: head too large", status=431))
    async with enriching(tmp_path, Enricher(), sink) as bench:
        await sent(bench, "a")
        assert await bench.dead() == 0
        history = await bench.store.events.history(1)
    assert sink.seen == [("a", True), ("a", False)]
    (attempt,) = history.attempts
    assert attempt.answer.startswith("ok (without what the person has watched, which was refused")


async def test_a_message_refused_without_a_history_too_becomes_a_dead_letter(
    tmp_path: Path,
) -> None:
    sink = Seeing()
    sink.always = Refused("422: no such lead", status=422)
    async with enriching(tmp_path, Enricher(), sink) as bench:
        await sent(bench, "a")
        assert await bench.dead() == 1
    assert sink.seen == [("a", True), ("a", False)]


async def test_only_the_refused_one_of_a_batch_is_sent_again(tmp_path: Path) -> None:
    sink = SeeingBatches()
    sink.reply(Refused("too large"), to="b")
    async with enriching(tmp_path, Enricher(), sink, concurrency=8, started=False) as bench:
        await bench.accept("a", "b", "c")
        running = asyncio.create_task(bench.dispatcher.run())
        await bench.settled()
        await bench.dispatcher.drain(Duration.parse("1s"))
        await running
    assert sink.seen.count(("b", True)) == sink.seen.count(("b", False)) == 1
    assert {name for name, with_history in sink.seen if not with_history} == {"b"}


@pytest.mark.parametrize("error", [FORBIDDEN, Temporary("500", status=500, about_event=True)])
async def test_an_event_that_keeps_failing_with_a_history_is_sent_without_it(
    tmp_path: Path, error: Exception
) -> None:
    sink = Seeing(dislike=error)
    async with enriching(tmp_path, Enricher(), sink, retry=policy(first="1s")) as bench:
        await sent(bench, "a")
    assert sink.seen == [*[("a", True)] * FAILURES_MAX, ("a", False)]


async def test_an_event_keeps_its_history_over_an_outage(tmp_path: Path) -> None:
    sink = Seeing()
    sink.reply(*[Temporary("connection refused")] * 4)
    async with enriching(tmp_path, Enricher(), sink, retry=policy(first="1s")) as bench:
        await sent(bench, "a")
    assert sink.seen == [("a", True)] * 5


async def test_a_drain_does_not_wait_for_an_answer(tmp_path: Path) -> None:
    enricher, sink = Enricher(after_s=3600), Seeing()
    limit = Duration.parse("10s")
    async with enriching(tmp_path, enricher, sink, enrich_timeout=limit) as bench:
        await bench.accept("a")
        await asyncio.sleep(0.5)
    assert enricher.cancelled == ["a"]
    assert sink.seen == []


async def test_the_memory_of_failures_is_bounded(tmp_path: Path) -> None:
    sink = Seeing(dislike=Refused("431"))
    async with enriching(tmp_path, Enricher(), sink, concurrency=50) as bench:
        ids = [f"e{number}" for number in range(DISLIKED_MAX + 20)]
        await sent(bench, *ids)
        enrichment = bench.dispatcher._enrichment
        assert enrichment is not None
        assert len(enrichment._failures) == DISLIKED_MAX
