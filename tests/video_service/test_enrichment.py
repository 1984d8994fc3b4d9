"""What people have watched is asked once, kept for a while, and never worth a wait or an error."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest
import structlog
from msgspec.structs import replace

from relay.core.api_settings import ApiSettings
from relay.core.config_values import Secret
from relay.core.errors import StoreUnavailable
from relay.core.event import Event
from relay.core.request_budget import BURST, ProcessBudgets
from relay.core.watch_history import WatchHistory
from relay.telemetry.metrics import Metrics
from relay.telemetry.metrics.labels import ENRICHED
from relay.video_service import enrichment
from relay.video_service.api.budget import Budget
from relay.video_service.api.client import Api
from relay.video_service.api.exchange import Exchange
from relay.video_service.enrichment import (
    ADDRESS_MAX,
    LOOKUPS_MAX,
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    REQUESTS_MAX,
    Pauses,
    WatchHistories,
)
from relay.video_service.history_cache import KEPT_S, PERSONS_MAX, HistoryCache, PersonKey
from tests.conftest import ManualClock
from tests.stub_server import Reply, StubServer, until

KEY = "key_of_the_tests_0123456789"
EMAIL = "ada@example.com"
TOUR = {
    "video": {"id": "vid_01", "title": "Product tour"},
    "sessions": 2,
    "watchedPercent": 60.0,
    "finished": False,
    "lastWatchedAt": "2026-03-02T09:30:00.000Z",
}


def said(*watched: dict[str, Any]) -> Reply:
    return Reply(body=orjson.dumps({"viewer": {"email": EMAIL}, "videos": list(watched)}))


async def at_once(_: float) -> None:
    await asyncio.sleep(0)


class Bench:
    """Asks a server that a test scripts, by the real client."""

    def __init__(self, peer: StubServer, clock: ManualClock) -> None:
        self.peer = peer
        self.clock = clock
        self.peer.reply = lambda _: said(TOUR)
        self.erased: set[str] = set()
        self.store_fails = False
        self.has_bug = False
        self.budget = Budget(Secret(KEY), ProcessBudgets())
        self.metrics = Metrics(["main"], ["sales"])
        self.histories = WatchHistories(
            connect=self._connect, is_erased=self._is_erased, metrics=self.metrics, clock=clock
        )
        self.histories.adopt({"main": self.settings()})

    def settings(self, **changes: Any) -> ApiSettings:
        values: dict[str, Any] = {"base_url": self.peer.url(""), "key": Secret(KEY), **changes}
        return ApiSettings(**values)

    def _connect(self, settings: ApiSettings) -> Api:
        if self.has_bug:
            raise KeyError(EMAIL)
        exchange = Exchange(settings, budget=self.budget, sleep=at_once)
        return Api(settings, exchange=exchange)

    async def _is_erased(self, email: str) -> bool:
        if self.store_fails:
            raise StoreUnavailable("no such table")
        return email in self.erased

    async def ask(self, event: Event, *, within_s: float = 10.0) -> WatchHistory | None:
        """Ask as the dispatcher does."""
        try:
            async with asyncio.timeout(within_s):
                return await self.histories.watch_history(event)
        except TimeoutError:
            return None

    @property
    def counts(self) -> dict[str, float]:
        text = self.metrics.exposition("")[0].decode()
        values = {
            result: float(
                text.partition(f'relay_enrichments_total{{result="{result}"}} ')[2].split()[0]
            )
            for result in ENRICHED
        }
        return {result: value for result, value in values.items() if value}

    def asked(self) -> list[str]:
        """The addresses that the API was asked for."""
        queries = [parse_qs(urlsplit(request.target).query) for request in self.peer.requests]
        return [query["email"][0] for query in queries]


@pytest.fixture
async def bench(destination: StubServer, clock: ManualClock) -> AsyncIterator[Bench]:
    bench = Bench(destination, clock)
    yield bench
    await bench.histories.close()
    await until(lambda: destination.open == 0, what="the end of the last connection")


def lead_of(event: Event, email: object, *, source: str = "main") -> Event:
    document = event.document()
    document["data"]["email"] = email
    return replace(event, source=source, body=orjson.dumps(document))


@pytest.fixture
def ada(lead: Event) -> Event:
    return lead_of(lead, EMAIL)


async def test_it_says_what_the_api_says(bench: Bench, ada: Event) -> None:
    history = await bench.ask(ada)
    assert history is not None
    (video,) = history.videos
    assert (video.id, video.title, video.milestone) == ("vid_01", "Product tour", "50%")
    assert video.last_ms == 1_772_443_800_000
    assert bench.asked() == [EMAIL]
    assert bench.counts == {"answered": 1}


@pytest.mark.parametrize(
    ("watched", "milestone"),
    [
        ({"watchedPercent": 0, "finished": False}, "started"),
        ({"watchedPercent": 24.9}, "started"),
        ({"watchedPercent": 25}, "25%"),
        ({"watchedPercent": 75.0, "finished": False}, "75%"),
        ({"watchedPercent": 90}, "completed"),
        ({"watchedPercent": 60, "finished": True}, "completed"),
        ({"finished": True}, "completed"),
        ({"finished": False}, None),
        ({"watchedPercent": "sixty", "finished": "maybe"}, None),
        ({"watchedPercent": -5}, None),
    ],
)
async def test_the_furthest_milestone_follows_from_what_was_watched(
    bench: Bench, ada: Event, watched: dict[str, Any], milestone: str | None
) -> None:
    bench.peer.reply = lambda _: said({"video": {"id": "vid_01"}, **watched})
    history = await bench.ask(ada)
    assert history is not None
    assert history.videos[0].milestone == milestone


async def test_a_person_unknown_to_the_api_has_watched_nothing(bench: Bench, ada: Event) -> None:
    bench.peer.reply = lambda _: said()
    history = await bench.ask(ada)
    assert history is not None
    assert history.count == 0


async def test_retries_and_other_sinks_do_not_ask_again(bench: Bench, ada: Event) -> None:
    at_once = await asyncio.gather(*(bench.ask(ada) for _ in range(5)))
    again = await bench.ask(lead_of(ada, " ADA@Example.com "))
    assert {history.count for history in (*at_once, again) if history is not None} == {1}
    assert bench.asked() == [EMAIL]
    assert bench.counts == {"answered": 5, "cached": 1}


async def test_an_answer_is_too_old_after_a_while(bench: Bench, ada: Event) -> None:
    await bench.ask(ada)
    bench.clock.ms += round(KEPT_S * 1000)
    await bench.ask(ada)
    assert bench.asked() == [EMAIL, EMAIL]


async def test_two_sources_are_two_services(bench: Bench, ada: Event) -> None:
    settings = bench.settings()
    bench.histories.adopt({"main": settings, "other": settings})
    await bench.ask(ada)
    await bench.ask(replace(ada, source="other"))
    assert bench.asked() == [EMAIL, EMAIL]


@pytest.mark.parametrize(
    "email", [None, 7, "", "  ", "nobody", "x" * ADDRESS_MAX + "@example.com", ["a@example.com"]]
)
async def test_no_history_is_requested_without_a_valid_address(
    bench: Bench, lead: Event, email: object
) -> None:
    assert await bench.ask(lead_of(lead, email)) is None
    assert (bench.asked(), bench.counts) == ([], {})


async def test_a_source_without_an_api_is_not_asked(bench: Bench, ada: Event) -> None:
    assert await bench.ask(replace(ada, source="other")) is None
    assert (bench.asked(), bench.counts) == ([], {})


async def test_no_history_is_requested_of_an_erased_person(bench: Bench, ada: Event) -> None:
    bench.erased.add(EMAIL)
    assert await bench.ask(ada) is None
    assert (bench.asked(), bench.counts) == ([], {"erased": 1})


async def test_no_history_is_requested_while_the_store_fails(bench: Bench, ada: Event) -> None:
    bench.store_fails = True
    assert await bench.ask(ada) is None
    assert (bench.asked(), bench.counts) == ([], {"failed": 1})


async def test_an_erasure_drops_what_is_kept(bench: Bench, ada: Event, lead: Event) -> None:
    await bench.ask(ada)
    await bench.ask(lead_of(lead, "bob@example.com"))
    assert [kept.source for kept in bench.histories.of("ADA@example.com ")] == ["main"]
    bench.histories.forget(" Ada@Example.COM")
    bench.erased.add(EMAIL)
    assert bench.histories.of(EMAIL) == []
    assert len(bench.histories.of("bob@example.com")) == 1
    assert await bench.ask(ada) is None


async def test_the_cached_history_of_a_person_erased_by_another_relay_is_not_used(
    bench: Bench, ada: Event
) -> None:
    await bench.ask(ada)
    bench.erased.add(EMAIL)
    assert await bench.ask(ada) is None
    assert bench.histories.of(EMAIL) == []
    assert bench.counts == {"answered": 1, "erased": 1}


async def test_cached_histories_are_not_used_while_the_store_cannot_report_erasures(
    bench: Bench, ada: Event
) -> None:
    await bench.ask(ada)
    bench.store_fails = True
    assert await bench.ask(ada) is None
    assert bench.counts == {"answered": 1, "failed": 1}


async def test_an_erasure_ends_look_ups_that_have_begun(bench: Bench, ada: Event) -> None:
    bench.peer.reply = lambda _: None
    asking = asyncio.create_task(bench.ask(ada))
    await until(lambda: len(bench.peer.requests) == 1, what="the request")
    bench.histories.forget(EMAIL)
    assert await asking is None
    assert bench.histories.of(EMAIL) == []


@pytest.mark.parametrize(
    "reply",
    [
        Reply(401),
        Reply(403),
        Reply(404),
        Reply(500),
        Reply(302, headers={"location": "/elsewhere"}),
        Reply(body=b"<html>"),
        Reply(body=b"[]"),
        b"no HTTP at all",
    ],
    ids=repr,
)
async def test_after_a_failure_the_api_is_not_asked_for_a_while(
    bench: Bench, ada: Event, reply: Reply | bytes
) -> None:
    bench.peer.reply = lambda _: reply
    with structlog.testing.capture_logs() as lines:
        assert await bench.ask(ada) is None
        requests = len(bench.peer.requests)
        assert await bench.ask(ada) is None
    assert len(bench.peer.requests) == requests
    assert bench.counts == {"failed": 1, "paused": 1}
    (line,) = lines
    assert (line["event"], line["source"]) == ("enrichment.failed", "main")
    assert EMAIL not in str(line)
    assert KEY not in str(line)
    bench.peer.reply = lambda _: said(TOUR)
    bench.clock.ms += round(PAUSE_FIRST_S * 1000)
    assert await bench.ask(ada) is not None


@pytest.mark.parametrize(
    "document",
    [
        {"videos": None},
        {"videos": "all of them"},
        {"videos": [None, 7, {"video": None}, {"video": {"id": 7}}]},
        {"videos": [{**TOUR, "lastWatchedAt": "yesterday", "video": {"id": "v", "title": 7}}]},
        {"videos": [{**TOUR, "lastWatchedAt": "9999-12-31T23:59:59.999Z", "more": {"of": "it"}}]},
        {"other": []},
    ],
    ids=repr,
)
async def test_a_wrong_answer_of_the_api_breaks_nothing(
    bench: Bench, ada: Event, document: object
) -> None:
    bench.peer.reply = lambda _: Reply(body=orjson.dumps(document))
    history = await bench.ask(ada)
    assert history is None or (history.count <= 1 and history.last_ms is None)


async def test_an_api_that_is_down_is_asked_once(bench: Bench, ada: Event, lead: Event) -> None:
    await bench.peer.stop()
    leads = [lead_of(lead, f"person{number}@example.com") for number in range(5)]
    assert [await bench.ask(each) for each in leads] == [None] * 5
    assert bench.counts == {"failed": 1, "paused": 4}


async def test_a_slow_api_is_not_asked_after_the_limit(bench: Bench, ada: Event) -> None:
    bench.peer.reply = lambda _: None
    with structlog.testing.capture_logs() as lines:
        assert await bench.ask(ada, within_s=0.1) is None
        assert await bench.ask(ada) is None
    assert bench.counts == {"late": 1, "paused": 1}
    assert [line["reason"] for line in lines] == ["no answer in time"]


@pytest.mark.parametrize("within_s", [0.3, 10.0])
async def test_a_limit_of_requests_is_named_as_the_cause_of_a_delay(
    bench: Bench, ada: Event, monkeypatch: pytest.MonkeyPatch, within_s: float
) -> None:
    monkeypatch.setattr(enrichment, "LOOKUP_MAX_S", 0.6)
    bench.peer.reply = lambda _: Reply(429, headers={"retry-after": "60"})
    with structlog.testing.capture_logs() as lines:
        assert await bench.ask(ada, within_s=within_s) is None
    assert lines[0]["reason"] == "the video service's API: rate limited"


@pytest.mark.parametrize("within_s", [0.3, 10.0])
async def test_connections_that_were_closed_are_named_as_the_cause_of_a_delay(
    bench: Bench, ada: Event, monkeypatch: pytest.MonkeyPatch, within_s: float
) -> None:
    monkeypatch.setattr(enrichment, "LOOKUP_MAX_S", 0.6)
    bench.peer.reply = lambda _: b"" if len(bench.peer.requests) == 1 else None
    with structlog.testing.capture_logs() as lines:
        assert await bench.ask(ada, within_s=within_s) is None
    assert lines[0]["reason"] == "the video service's API: connection closed"


async def test_a_look_up_ends_at_its_own_limit(
    bench: Bench, ada: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrichment, "LOOKUP_MAX_S", 0.05)
    bench.peer.reply = lambda _: None
    with structlog.testing.capture_logs() as lines:
        assert await bench.ask(ada) is None
    assert bench.counts == {"failed": 1}
    assert [line["reason"] for line in lines] == ["no answer within 0.05 s"]


async def test_a_bug_costs_the_history_and_is_logged_without_the_person(
    bench: Bench, ada: Event
) -> None:
    bench.has_bug = True
    with structlog.testing.capture_logs() as lines:
        assert await bench.ask(ada) is None
    assert bench.counts == {"failed": 1}
    assert [line["event"] for line in lines] == ["enrichment.bug", "enrichment.failed"]
    assert lines[1]["reason"] == "a bug in the relay: KeyError"
    assert EMAIL not in str(lines)
    bench.has_bug = False
    bench.clock.ms += round(PAUSE_FIRST_S * 1000)
    assert await bench.ask(ada) is not None


async def test_an_answer_that_is_late_for_one_message_serves_the_next(
    bench: Bench, ada: Event
) -> None:
    await bench.budget.pause(0.3)
    assert await bench.ask(ada, within_s=0.05) is None
    await until(lambda: bool(bench.histories.of(EMAIL)), what="the answer")
    assert await bench.ask(ada) is not None
    assert bench.counts == {"late": 1, "cached": 1}


async def test_a_limited_api_delays_nothing_beyond_the_limit(bench: Bench, ada: Event) -> None:
    bench.peer.reply = lambda _: Reply(429, headers={"retry-after": "60"})
    started_s = time.monotonic()
    asking = asyncio.create_task(bench.ask(ada, within_s=1.0))
    await until(lambda: len(bench.peer.requests) == 1, what="the request")
    assert await asking is None
    assert time.monotonic() - started_s < 5
    assert len(bench.peer.requests) == 1
    assert bench.counts == {"late": 1}


async def test_a_budget_that_is_spent_is_not_exceeded(bench: Bench, ada: Event) -> None:
    for _ in range(BURST):
        await bench.budget.grant("someone else")
    await bench.budget.pause(60)
    assert await bench.ask(ada, within_s=0.1) is None
    assert (bench.asked(), bench.counts) == ([], {"late": 1})


async def test_a_burst_of_leads_makes_few_requests_at_once(bench: Bench, lead: Event) -> None:
    bench.peer.reply = lambda _: None
    leads = [lead_of(lead, f"person{number}@example.com") for number in range(LOOKUPS_MAX + 10)]
    asking = [asyncio.create_task(bench.ask(each)) for each in leads]
    await until(lambda: len(bench.peer.requests) == REQUESTS_MAX, what="the requests")
    await asyncio.sleep(0.05)
    assert len(bench.peer.requests) == REQUESTS_MAX
    assert bench.counts == {"busy": 10}
    for each in asking:
        each.cancel()
    await asyncio.wait(asking)


async def test_a_changed_api_is_asked_anew_and_an_unchanged_one_is_not(
    bench: Bench, ada: Event
) -> None:
    await bench.ask(ada)
    bench.histories.adopt({"main": bench.settings()})
    assert len(bench.histories.of(EMAIL)) == 1
    bench.histories.adopt({"main": bench.settings(key=Secret("another-key-0123456789"))})
    assert bench.histories.of(EMAIL) == []
    await bench.ask(ada)
    keys = [request.header["authorization"] for request in bench.peer.requests]
    assert keys == [f"Bearer {KEY}", "Bearer another-key-0123456789"]


async def test_an_abandoned_lookup_is_not_requested(bench: Bench, ada: Event) -> None:
    bench.peer.reply = lambda _: None
    asking = asyncio.create_task(bench.ask(ada))
    await until(lambda: len(bench.peer.requests) == 1, what="the request")
    bench.histories.adopt({})
    assert await asking is None
    assert await bench.ask(ada) is None
    assert len(bench.peer.requests) == 1


def test_the_number_of_cached_persons_is_bounded(clock: ManualClock) -> None:
    kept = HistoryCache(clock)
    for number in range(PERSONS_MAX + 3):
        kept.keep(PersonKey.of("main", f"{number}@example.com"), WatchHistory.of(()))
    assert kept.find(PersonKey.of("main", "2@example.com")) is None
    assert kept.find(PersonKey.of("main", "3@example.com")) is not None


def test_pauses_double_up_to_a_limit_and_start_over_after_a_success(clock: ManualClock) -> None:
    pauses = Pauses(clock)
    lengths = []
    for _ in range(8):
        pauses.begin("main")
        started_ms = clock.ms
        while pauses.has("main"):
            clock.ms += 1000
        lengths.append((clock.ms - started_ms) / 1000)
    assert lengths == [5, 10, 20, 40, 80, 160, PAUSE_MAX_S, PAUSE_MAX_S]
    pauses.end("main")
    pauses.begin("main")
    assert not pauses.has("other")
    clock.ms += round(PAUSE_FIRST_S * 1000)
    assert not pauses.has("main")
