"""Everything that a filter matches: counted, confirmed, replayed or discarded, and stopped."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from relay.admin.page import jobs
from relay.delivery import replayer
from tests import service
from tests.admin.page.document import Element
from tests.admin.page.visiting import ADA, ADMIN, Visitor, visiting
from tests.admin.test_api import body, send
from tests.caller import PATIENCE_S
from tests.operator import operating
from tests.service import Relay, ShiftedClock
from tests.stub_server import Reply, StubServer, until

Start = Callable[..., contextlib.AbstractAsyncContextManager[Relay]]


@pytest.fixture
async def destination() -> AsyncIterator[StubServer]:
    async with StubServer() as destination:
        destination.reply = lambda request: Reply(422 if request.target == "/leads" else 200)
        yield destination


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def start(tmp_path: Path, destination: StubServer, clock: ShiftedClock) -> Start:
    def started() -> contextlib.AbstractAsyncContextManager[Relay]:
        settings = service.read(tmp_path, tables=ADMIN, destination=destination)
        return service.serving(settings, clock=clock)

    return started


async def fill(relay: Relay, count: int = 3) -> None:
    """Leads that are dead for one sink, and a video that both others have."""
    await send(relay, *(body(f"e{number}", email=ADA) for number in range(count)))
    await send(relay, body("v", "video.ready"))
    await relay.until_counted("relay_deliveries_total", "dead", "leads", value=count)
    await relay.until_counted("relay_deliveries_total", "delivered", "all", value=count + 1)


async def counted(visitor: Visitor, path: str) -> Element:
    """Choose what matches, have it counted, and see the confirmation."""
    page = await visitor.see(path)
    change = path.partition("?")[0]
    return await settled(visitor, await visitor.submit(page.form(change)))


async def settled(visitor: Visitor, page: Element) -> Element:
    """Look again until nothing runs any more."""
    async with asyncio.timeout(PATIENCE_S):
        while "Look again" in page.links():
            page = await visitor.see(page.links()["Look again"])
    return page


def title(page: Element) -> str:
    return page.all("h1")[0].text


def form_to(page: Element, ending: str) -> Element:
    (form,) = (
        each for each in page.all("form") if (each.attributes.get("action") or "").endswith(ending)
    )
    return form


def confirm(page: Element) -> Element:
    return form_to(page, "/confirm")


async def changes(relay: Relay) -> list[dict[str, Any]]:
    async with operating(relay) as operator:
        found: list[dict[str, Any]] = (await operator.get("/audit"))["changes"]
        return found


async def test_events_that_a_filter_matches_are_counted_shown_and_replayed(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    await fill(relay)
    events = await visitor.see("/events?sink=leads&outcome=dead")
    first = await visitor.see(events.links()["Replay all that match…"])
    assert [row[2] for row in first.rows()] == ["e2", "e1", "e0"]
    page = await counted(visitor, "/events/replay?sink=leads&outcome=dead")
    assert title(page) == "Replay 3 deliveries?"
    assert page.rows()[0] == [
        "leads",
        "lead.captured",
        "422: the destination refuses this event",
        "3",
    ]
    assert await changes(relay) == []
    destination.reply = lambda _: Reply()
    await send(relay, body("late", email=ADA))
    replay = await visitor.submit(confirm(page))
    assert title(replay) == "Replay 1"
    assert replay.by_id("notice").text == "Replay 1 of 3 deliveries has begun."
    await relay.until_counted("relay_deliveries_total", "delivered", "leads", value=4)
    async with asyncio.timeout(PATIENCE_S):
        while "done" not in replay.all("p", class_="facts")[0].text:
            replay = await visitor.see("/replays/1")
    assert replay.by_id("progress")["value"] == "3"
    assert (await visitor.see("/replays")).rows()[0][:5] == [
        "Replay 1",
        "done",
        "Sink leads Outcome dead",
        "3",
        "3",
    ]
    (change,) = await changes(relay)
    assert (change["operation"], change["via"]) == ("begin_replay", "page")
    assert (change["asked"]["sink"], change["asked"]["outcome"]) == ("leads", "dead")


async def test_a_replay_goes_to_one_sink_and_only_once(relay: Relay, visitor: Visitor) -> None:
    await fill(relay)
    chosen = await visitor.see("/events/replay")
    fields = chosen.form("/events/replay").fields() | {"to": "all"}
    answer = await visitor.post("/events/replay", fields)
    page = await settled(visitor, await visitor.see(answer.headers["location"]))
    assert title(page) == "Replay 4 deliveries?"
    assert {row[0] for row in page.rows()[:2]} == {"all"}
    await visitor.submit(confirm(page))
    again = await visitor.submit(confirm(page))
    assert title(again) == "The replay has begun"
    assert len((await visitor.see("/replays")).rows()) == 1


async def test_a_running_replay_is_cancelled_and_says_so(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    async with operating(relay) as operator:
        await fill(relay)
        await operator.post("/sinks/leads/pause")
        page = await counted(visitor, "/events/replay?sink=leads&outcome=dead")
        replay = await visitor.submit(confirm(page))
        cancelled = await visitor.submit(replay.form("/replays/1/cancel"))
        assert cancelled.by_id("notice").text.startswith("Replay 1 is cancelled after 0 of 3")
        assert "cancelled" in cancelled.all("p", class_="facts")[0].text
        assert "/cancel" not in visitor.html
        assert (await changes(relay))[0]["operation"] == "cancel_replay"


async def test_nothing_to_replay_says_why(relay: Relay, visitor: Visitor) -> None:
    await fill(relay)
    page = await counted(visitor, "/events/replay?kind=video.ready&outcome=dead")
    assert title(page) == "Nothing to replay"
    assert page.by_id("job").text.startswith("No dead letter matches.")


async def test_a_count_is_stopped(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    forever = asyncio.Event()
    monkeypatch.setattr(replayer, "STEP_EVENTS", 1)
    async with start() as relay, visiting(relay) as visitor:
        await fill(relay)
        choose = relay.service._store.replays.choose

        async def hang(*given: Any, after: int, **more: Any) -> Any:
            if after:
                await forever.wait()
            return await choose(*given, after=after, **more)

        monkeypatch.setattr(relay.service._store.replays, "choose", hang)
        chosen = await visitor.see("/events/replay?outcome=dead")
        page = await visitor.submit(chosen.form("/events/replay"))
        async with asyncio.timeout(PATIENCE_S):
            while "1 so far, 25 %" not in page.by_id("job").text:
                page = await visitor.see(page.links()["Look again"])
        stop = form_to(page, "/stop")
        stopped = await visitor.submit(stop)
        assert title(stopped) == "Stopped"
        assert "Nothing was changed." in stopped.by_id("job").text
        monkeypatch.setattr(relay.service._store.replays, "choose", choose)
        again = await visitor.submit(stopped.form("/events/replay"))
        assert title(await settled(visitor, again)) == "Replay 3 deliveries?"


async def test_too_many_counts_at_once_are_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "RUNNING_MAX", 0)
    async with start() as relay, visiting(relay) as visitor:
        await fill(relay)
        form = (await visitor.see("/events/replay")).form("/events/replay")
        assert "Too many counts" in (await visitor.submit(form)).by_id("notice").text


async def test_a_count_can_be_confirmed_for_ten_minutes(start: Start, clock: ShiftedClock) -> None:
    async with start() as relay, visiting(relay) as visitor:
        await fill(relay)
        page = await counted(visitor, "/events/replay?outcome=dead")
        clock.shift_s = 601
        answer = await visitor.post(confirm(page)["action"], confirm(page).fields())
        expired = await visitor.see(answer.headers["location"])
        assert title(expired) == "This count is too old"
        assert await changes(relay) == []
        again = await visitor.submit(expired.form("/events/replay"))
        assert title(await settled(visitor, again)) == "Replay 3 deliveries?"
        await visitor.see("/events/bulk/unknown", status=404)


async def test_dead_letters_are_counted_and_discarded(relay: Relay, visitor: Visitor) -> None:
    await fill(relay)
    page = await counted(visitor, "/events/discard?sink=leads")
    assert title(page) == "Discard 3 dead letters?"
    assert page.rows()[0] == ["leads", "422: the destination refuses this event", "3"]
    done = await settled(visitor, await visitor.submit(confirm(page)))
    assert title(done) == "3 dead letters are discarded"
    assert (await visitor.see("/events?outcome=discarded")).by_id("count").text == (
        "3 events match"
    )
    (change,) = await changes(relay)
    assert (change["operation"], change["result"]) == (
        "discard_dead_letters",
        {"discarded": 3},
    )
    pending = await visitor.see("/events/discard?outcome=pending", status=422)
    assert "Only dead letters" in pending.text


async def test_everything_is_discarded_only_if_that_is_typed(start: Start) -> None:
    async with start() as relay, visiting(relay) as visitor:
        await fill(relay)
        page = await counted(visitor, "/events/discard")
        refused = await visitor.submit(confirm(page))
        assert "Type “discard everything”" in refused.by_id("notice").text
        assert await changes(relay) == []
        fields = confirm(refused).fields() | {"typed": "Discard everything "}
        answer = await visitor.post(confirm(refused)["action"], fields)
        done = await settled(visitor, await visitor.see(answer.headers["location"]))
        assert title(done) == "3 dead letters are discarded"


async def test_a_discard_is_stopped_between_two_steps_and_tells_its_result(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.dead_letters.DISCARD_STEP_ROWS", 1)
    async with start() as relay, visiting(relay) as visitor:
        await fill(relay)
        page = await counted(visitor, "/events/discard?sink=leads")
        reached, released = asyncio.Event(), asyncio.Event()
        dead_letters = relay.service._store.dead_letters
        discard = dead_letters.discard

        async def paused(selection: Any, *, now_ms: int, goes_on: Callable[[int], bool]) -> int:
            reached.set()
            await released.wait()
            return await discard(selection, now_ms=now_ms, goes_on=goes_on)

        monkeypatch.setattr(dead_letters, "discard", paused)
        running = await visitor.submit(confirm(page))
        assert title(running) == "Discarding dead letters"
        await until(reached.is_set, what="the discard's start")
        stop = form_to(running, "/stop")
        await visitor.submit(stop)
        released.set()
        stopped = await settled(visitor, await visitor.see(running.links()["Look again"]))
        assert title(stopped) == "Stopped after 1"
        assert "1 of 3 dead letters were discarded" in stopped.by_id("job").text
        (change,) = await changes(relay)
        assert change["result"] == {"discarded": 1}


async def test_a_viewer_sees_replays_without_personal_data_and_changes_nothing(
    relay: Relay, viewer: Visitor
) -> None:
    async with operating(relay) as operator:
        await fill(relay)
        person = relay.service._store.audience.person(ADA)
        await operator.post("/replays", {"email": ADA, "person": person, "words": "e1"})
        await send(relay, body(f"of-{ADA}"))
        await relay.until_counted("relay_deliveries_total", "dead", "leads", value=5)
        await operator.post("/replays", {"id": f"of-{ADA}", "sink": "leads"})
        await viewer.see("/replays/2")
        assert "(address hidden)" in viewer.html
        assert not {ADA, quote(ADA)} & set(re.findall(f"{ADA}|{quote(ADA)}", viewer.html))
        await viewer.see("/replays")
        page = await viewer.see("/replays/1")
        assert person not in viewer.html
        assert ADA not in viewer.html
        assert "Words in the body …" in page.text
        token = page.form("/find").fields()["form_token"]
        for path in (
            "/replays/1/cancel",
            "/events/replay",
            "/events/discard",
            "/events/bulk/x/stop",
        ):
            assert (await viewer.post(path, {"form_token": token})).status_code == 403
        await viewer.see("/replays/99", status=404)
        await viewer.see("/events/bulk/x", status=403)
